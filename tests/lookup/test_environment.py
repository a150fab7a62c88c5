"""`gemmdb.lookup`: the environment's tables, opened once and opened again when they change."""

import subprocess
import sys

import pytest

import gemmdb
from gemmdb.devices import detect
from gemmdb.errors import InputError
from gemmdb.hit import Hit
from gemmdb.lookup import environment
from gemmdb.table.measurement import Status
from gemmdb.table.writer import Store


@pytest.fixture
def named(lab, tmp_path, monkeypatch):
    """A table that GEMMDB_TABLES names, with one problem in it."""
    path = tmp_path / "named.db"
    monkeypatch.setenv("GEMMDB_TABLES", str(path))
    monkeypatch.setenv("GEMMDB_USER_TABLE", str(tmp_path / "mine.db"))
    write(path, lab.rows(lab.problem(), {lab.cpp(): 0.5}, torch=""))
    return path


def write(path, measurements):
    with Store.open(path) as store:
        store.add(measurements)
        store.refresh()


def test_a_lookup_reads_the_named_tables(lab, named):
    hit = gemmdb.lookup(lab.problem(), device="Some CPU")
    assert (hit.rung, hit.config, hit.backend, hit.kernel) == ("exact", lab.cpp(), "cpp", "packed_gemm")
    assert hit.params == dict(lab.cpp().params)
    assert hit.expected_us == pytest.approx(50.0)


def test_a_lookup_names_the_state_of_the_cache(lab, named):
    assert gemmdb.lookup(lab.problem(), "Some CPU", l2="hot") is None
    write(named, lab.rows(lab.problem(), {lab.cpp(): 0.4}, l2="hot"))
    assert gemmdb.lookup(lab.problem(), "Some CPU", l2="hot").config == lab.cpp()
    with pytest.raises(InputError, match="unknown l2 state 'warm'"):
        gemmdb.lookup(lab.problem(), l2="warm")


def test_an_unknown_device_is_bad_input(lab, named):
    with pytest.raises(InputError, match="Some Abacus"):
        gemmdb.lookup(lab.problem(), "Some Abacus")


def test_the_catalog_is_opened_once_and_again_when_a_file_changes(lab, named):
    first = environment.current_catalog()
    assert environment.current_catalog() is first
    write(named, lab.rows(lab.problem(m=999), {}, run="other"))
    assert environment.current_catalog() is not first
    assert gemmdb.lookup(lab.problem(m=999), "Some CPU").rung == "exact"


def test_the_environment_is_read_again_after_a_tenth_of_a_second_and_no_sooner(lab, named, monkeypatch):
    now = 100.0
    monkeypatch.setattr(environment, "INTERVAL_S", 0.1)
    gemmdb.refresh()
    monkeypatch.setattr(environment.time, "monotonic", lambda: now)
    first = environment.current()
    monkeypatch.setenv("GEMMDB_CONFIRM", "0")
    now += environment.INTERVAL_S / 2
    assert environment.current() is first
    now += environment.INTERVAL_S
    second = environment.current()
    assert (second is first, second.settings.confirm) == (False, False)
    now += environment.INTERVAL_S
    assert environment.current() is second


def test_refresh_reads_the_environment_at_once(lab, named, monkeypatch):
    monkeypatch.setattr(environment, "INTERVAL_S", 60.0)
    gemmdb.refresh()
    assert environment.current().settings.confirm
    monkeypatch.setenv("GEMMDB_CONFIRM", "0")
    assert environment.current().settings.confirm
    gemmdb.refresh()
    assert not environment.current().settings.confirm


def test_tables_that_appear_later_are_found(lab, named, tmp_path):
    problem = lab.problem(m=999)
    assert gemmdb.lookup(problem, "Some CPU") is None
    write(tmp_path / "mine.db", lab.rows(problem, {lab.cpp(): 0.5}))
    assert gemmdb.lookup(problem, "Some CPU").table == str(tmp_path / "mine.db")


def test_on_miss_does_not_matter_to_a_lookup(lab, named, monkeypatch):
    monkeypatch.setenv("GEMMDB_ON_MISS", "error")
    assert gemmdb.lookup(lab.problem(m=999), "Some CPU") is None


def test_a_wrong_row_added_later_is_not_served(lab, named):
    problem = lab.problem()
    write(named, lab.rows(problem, {lab.cpp(): 0.5}, run="later", status=Status.WRONG))
    assert gemmdb.lookup(problem, "Some CPU").backend == "aten"


def test_the_readmes_call_works_in_a_fresh_process():
    code = "import gemmdb; print(gemmdb.lookup(gemmdb.Problem.gemm('mm', m=16, n=4096, k=4096), device='cpu'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_native_device_is_made_once_for_a_number_of_threads(monkeypatch):
    """A lookup would pay for its texts and keys again."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    three = detect.cpu()
    assert detect.cpu() is three
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert (three.units, detect.cpu().units) == (3, 5)


def test_a_hit_prints_what_the_command_line_promises(lab):
    config = lab.cpp(blocks_m=2)
    hit = Hit("near", config, 12.5, 1.5, "/a/table.db", {"distance": 0.5})
    assert hit.as_dict() == {
        "rung": "near", "backend": "cpp", "kernel": "packed_gemm", "params": dict(config.params), "expected_us": 12.5,
        "speedup_vs_aten": 1.5, "table": "/a/table.db", "evidence": {"distance": 0.5},
    }  # fmt: skip
