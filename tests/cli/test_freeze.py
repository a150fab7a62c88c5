"""`gemmdb freeze`, and what commands do with its result."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from kit.devices import H200

from gemmdb.cli.freeze import FOLDER
from gemmdb.devices import detect
from gemmdb.errors import InputError
from gemmdb.generators.files.pack import pack
from gemmdb.key.device import Device
from gemmdb.lookup.environment import refresh
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store
from gemmdb.tune import freeze, running, tuning
from gemmdb.tune.running import Recorded

DEVICE = Device("cpu", "cpu", "Example CPU", 2, isa="avx2")
KERNEL = "cpp:packed_gemm blocks_k=0 blocks_m=0 blocks_n=0 threads_k=1 threads_m=1 threads_n=2"
COMMAND = ("no-such-program",)


@pytest.fixture
def recorded(environment, problem):
    """The folder of a program that was recorded before, with one GEMM."""
    state = tuning.open_folder(FOLDER, COMMAND, False)
    state.recorded = True
    state.save()
    line = {"problem": problem.text, "count": 1, "calls": 9, "device": DEVICE.text}
    state.workload.write_text(json.dumps(line) + "\n")
    return FOLDER


@pytest.fixture
def pins(gemmdb, recorded, table, monkeypatch) -> Path:
    """The list of a frozen program, in force."""
    done = gemmdb("freeze", "--", *COMMAND)
    assert done.code == 0, done.err
    monkeypatch.delenv("GEMMDB_TABLES")
    monkeypatch.setenv("GEMMDB_FROZEN", str((recorded / freeze.LIST).absolute()))
    return recorded / freeze.LIST


def test_what_the_tables_have_is_pinned(gemmdb, recorded, table):
    done = gemmdb("freeze", "--json", "--", *COMMAND)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [one["name"] for one in found["tables"]] == ["frozen.db"]
    (product,) = found["products"]
    assert (product["configs"], product["outcome"], product["device"]) == ([KERNEL], "table", DEVICE.sku)
    assert (found["measured"], found["left"], found["changed"], found["outcomes"]) == (0, 0, [], {"table": 1})
    assert subprocess.run(["sha256sum", "-c", freeze.LIST], cwd=recorded, capture_output=True).returncode == 0
    assert Table.open(recorded / freeze.PACKED).packed


def test_the_result_says_how_the_program_is_started(gemmdb, recorded, table):
    done = gemmdb("freeze", "--", *COMMAND)
    assert f"GEMMDB_FROZEN={(recorded / freeze.LIST).absolute()} no-such-program" in done.out
    assert "1 table" in done.out
    assert gemmdb("freeze", "--", *COMMAND).out == done.out


def test_the_same_tables_give_the_same_bytes(gemmdb, recorded, table):
    digests = set()
    for _ in range(2):
        digests.add(json.loads(gemmdb("freeze", "--json", "--", *COMMAND).out)["tables"][0]["sha256"])
    assert len(digests) == 1


def test_a_lookup_reads_the_pinned_table_alone(gemmdb, pins, table, flags):
    table.unlink()
    done = gemmdb("lookup", *flags, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["rung"], Path(found["table"]).name) == ("exact", freeze.PACKED)


def test_a_changed_table_is_refused_with_its_remedy(gemmdb, pins, flags, make_table):
    path = pins.parent.absolute() / freeze.PACKED
    shutil.copy(make_table("other.db", us=20.0), path)
    said = f"{path} is not the table that {pins.absolute()} lists: its SHA-256 differs; restore the file, or run"
    for command in (["lookup", *flags], ["explain", *flags], ["coverage", str(pins.parent / "workload.jsonl")]):
        gemmdb(*command).refused(said, "`gemmdb freeze` again")
    path.unlink()
    gemmdb("lookup", *flags).refused("does not exist, but", "copy it there")


def test_the_doctor_says_that_it_is_in_force(gemmdb, pins, monkeypatch):
    from gemmdb.cli import doctor

    found = {one.name: one for one in doctor.checks(doctor.Memory(), compile_probe=False)}
    check = found["GEMMDB_FROZEN"]
    assert (check.state, check.detail.startswith("in force: compiles time and write nothing")) == (doctor.OK, True)
    assert check.detail.endswith("frozen.sha256: frozen.db")
    monkeypatch.setenv("GEMMDB_FROZEN", "1")
    found = {one.name: one for one in doctor.checks(doctor.Memory(), compile_probe=False)}
    assert "those named, and the shipped ones" in found["GEMMDB_FROZEN"].detail
    monkeypatch.setenv("GEMMDB_FROZEN", "/nowhere/frozen.sha256")
    found = {one.name: one for one in doctor.checks(doctor.Memory(), compile_probe=False)}
    assert found["GEMMDB_FROZEN"].state == doctor.BROKEN


def test_packed_tables_are_copied_and_shipped_ones_listed(gemmdb, recorded, make_table, monkeypatch, tmp_path, flags):
    """A table of another architecture is neither."""
    other = make_table("other.db", device=replace(H200, sku="Other"))
    pack(make_table("measured.db"), tmp_path / "packed.db")
    (tmp_path / "shipped").mkdir()
    pack(tmp_path / "measured.db", tmp_path / "shipped" / "cpu-example.db")
    monkeypatch.setenv("GEMMDB_TABLES", f"{tmp_path / 'packed.db'}:{other}")
    done = gemmdb("freeze", "--json", "--", *COMMAND)
    assert done.code == 0, done.err
    copy, shipped = (one["name"] for one in json.loads(done.out)["tables"])
    assert (copy.partition("-")[2], shipped) == ("packed.db", "cpu-example.db")
    assert (recorded / copy).read_bytes() == (tmp_path / "packed.db").read_bytes()
    assert not (recorded / shipped).exists()
    monkeypatch.setenv("GEMMDB_FROZEN", str(recorded / freeze.LIST))
    monkeypatch.delenv("GEMMDB_TABLES")
    assert gemmdb("lookup", *flags).code == 0
    (tmp_path / "shipped" / "cpu-example.db").write_bytes(b"another version of gemmdb")
    refresh()
    gemmdb("lookup", *flags).refused("cpu-example.db is not the table that")


def test_without_any_table_the_program_is_frozen_to_aten(gemmdb, recorded, monkeypatch):
    monkeypatch.setattr(tuning.Tuning, "build", lambda *_: pytest.fail("its device is not here"))
    monkeypatch.setattr(tuning.plans, "plan", lambda *_, **__: tuning.Plan((), {}, 1.0))
    done = gemmdb("freeze", "--", *COMMAND)
    assert done.code == 0, done.err
    assert "none: no table has this device, and ATen runs all GEMMs" in done.out
    assert "1 GEMM: 1 ATen (nothing known); no gain, ATen runs every GEMM" in done.out
    assert "1.00x" not in done.out
    (step,) = [line for line in done.out.splitlines() if line.startswith("to do")]
    assert step.endswith("measure them: gemmdb build --arch native --shapes gemmdb-freeze/workload.jsonl")


def test_a_frozen_environment_cannot_be_frozen_again(gemmdb, pins):
    for command in ("freeze", "tune"):
        gemmdb(command, "--", *COMMAND).refused("while GEMMDB_FROZEN is set; unset it for this command")


@pytest.fixture
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(detect, "native", lambda: H200)


def test_a_program_runs_until_it_times_nothing_new(environment, on_a_gpu, monkeypatch, make_table, tmp_path):
    path, runs, said = make_table("table.db"), [], []

    def run(command, folder, what, variables, stdout):
        runs.append((tuple(command), what, variables))
        if len(runs) == 1:
            with Store.open(path) as store, Table.open(make_table("more.db", us=40.0)) as more:
                store.add(more.measurements())
                store.refresh()
        return Recorded(0, 1, 1, ())

    monkeypatch.setattr(freeze, "run", run)
    assert freeze.settle(COMMAND, path, said.append) == 2
    command, what, variables = runs[0]
    assert (command, what, len(said)) == (COMMAND, "settle", 2)
    assert variables["GEMMDB_USER_TABLE"] == str(path)
    assert variables["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] == "1", "a cached graph would time nothing"


def test_a_program_that_fails_is_not_frozen(environment, on_a_gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(freeze, "run", lambda *_: Recorded(3, 1, 1, ()))
    with pytest.raises(InputError, match="exit code 3; it has to run without an error"):
        freeze.settle(COMMAND, tmp_path / "table.db", lambda _: None)
    monkeypatch.setattr(freeze, "run", lambda *_: Recorded(0, 1, 1, ("python: it is too old",)))
    with pytest.raises(InputError, match="cannot be timed: python: it is too old"):
        freeze.settle(COMMAND, tmp_path / "table.db", lambda _: None)


SETTLED = """
import torch
import gemmdb.inductor
from gemmdb.inductor.entry import active

gemmdb.inductor.enable(on_miss="error", frozen=True)
torch.compile(torch.nn.Linear(8, 8))(torch.ones(4, 8))
policy = active.current().policy
assert (policy.on_miss, policy.confirm, policy.horizontal, policy.frozen) == ("aten", True, False, False), policy
assert gemmdb.inductor.stats()["errors"] == []
"""


def test_a_program_that_is_settled_confirms_whatever_it_enables(environment, tmp_path):
    """And its GEMMs stay apart, as in a frozen compile."""
    Path("serve.py").write_text(SETTLED)
    done = running.run([sys.executable, "serve.py"], tmp_path / "table.db", "settle")
    assert (done.exit_code, done.failures, done.torches) == (0, (), 1)


def test_on_a_cpu_the_program_times_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(detect, "native", lambda: DEVICE)
    monkeypatch.setattr(freeze, "run", lambda *_: pytest.fail("it is not run"))
    assert freeze.settle(COMMAND, tmp_path / "table.db", lambda _: None) == 0


PROGRAM = """
import json
import torch
import torch._inductor.config
import gemmdb.inductor

gemmdb.inductor.enable()
torch._inductor.config.freezing = True
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32)).eval()
run = torch.compile(model)
with torch.no_grad():
    for _ in range(5):
        run(torch.ones(16, 64))
stats = gemmdb.inductor.stats()
configs = {one["problem"]: one["config"] for one in stats["products"]}
print(json.dumps([configs, stats["frozen"], stats["errors"], stats["benchmarked"], stats["seconds"].get("live", 0.0)]))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_whole_way(gemmdb, environment, monkeypatch, tmp_path):
    """A real program: what is built for it is what it runs, and nothing is timed or written."""
    from kit.inductor import script

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    Path("serve.py").write_text(PROGRAM)
    command = [sys.executable, "serve.py"]
    done = gemmdb("freeze", "--wait", "0s", "--json", "--", *command)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["measured"] >= 2
    assert not (tmp_path / "data").exists()
    monkeypatch.setenv("GEMMDB_FROZEN", str(FOLDER / freeze.LIST))

    def ran() -> list[object]:
        served = script(Path("serve.py"), tmp_path, os.environ)
        assert served.returncode == 0, served.stderr
        replies.append(served.stderr)
        return json.loads(served.stdout.splitlines()[-1])

    replies: list[str] = []
    configs, frozen, errors, benchmarked, _ = ran()
    assert configs == {one["problem"]: one["configs"][0] for one in found["products"]}
    assert (errors, benchmarked) == ([], 0)
    assert [Path(one["path"]).name for one in frozen["tables"]] == ["frozen.db"]
    assert not (tmp_path / "data").exists()
    path = FOLDER / freeze.PACKED
    path.write_bytes(path.read_bytes() + bytes(8192))
    configs, frozen, *_ = ran()
    assert (set(configs.values()), frozen["tables"]) == ({"aten:default"}, [])
    assert replies[-1].count("is not the table that") == 1
