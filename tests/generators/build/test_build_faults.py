"""Builds when something else fails: the disk, its locks, the clock, the compiler, and readers that come meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from kit import disks
from kit.replay import CONFIGS, DEVICE, ReplayBackend, record

from benchmarks.stress import kills, victims
from benchmarks.stress.contents import contents, differences
from gemmdb import InputError, Policy, TableError, lookup
from gemmdb.generators.backend import Candidate, Job
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.effort import named
from gemmdb.generators.files.merge import merge
from gemmdb.generators.files.pack import pack
from gemmdb.generators.files.verify import verify
from gemmdb.generators.measure.cpu.measurer import CpuMeasurer
from gemmdb.generators.measure.cpu.space import AUTO, template
from gemmdb.key.problem import Problem, Query
from gemmdb.processes.pool import Limits
from gemmdb.settings import Settings
from gemmdb.table.catalog import Catalog
from gemmdb.table.measurement import Protocol, Status
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

ROOT = Path(__file__).parents[3]
TIMES = (100.0, 80.0, 60.0, 90.0)
TESTS = str(ROOT / "tests")
PROBLEMS = [Problem.gemm("mm", m=m, n=64, k=64, dtype="fp32", constant_weight=True) for m in range(1, 121)]
FEW = PROBLEMS[:40]


@pytest.fixture
def many():
    """Rows of 120 problems: ATen takes 100 us, the others less."""
    return [record(problem, c, us) for problem in PROBLEMS for c, us in zip(CONFIGS, TIMES, strict=True)]


@pytest.fixture
def request_many(tmp_path):
    """A request to build them into a file of its own."""
    shapes = kills.write_shapes(tmp_path / "many.jsonl", PROBLEMS)
    return BuildRequest(arch="cpu", shapes=str(shapes), out=tmp_path / "disk" / "table.db")


@pytest.fixture
def request_few(request_many, tmp_path):
    """The same of the first FEW."""
    return replace(request_many, shapes=str(kills.write_shapes(tmp_path / "few.jsonl", FEW)))


def test_a_full_disk_ends_a_build_with_one_line_and_the_same_command_goes_on(request_many, many, tmp_path):
    undisturbed = replace(request_many, out=tmp_path / "undisturbed.db")
    build(undisturbed, backend=ReplayBackend(many))
    with disks.small(request_many.out.parent, "160k") as disk:
        for _ in range(2):
            with pytest.raises(
                TableError, match=r"table\.db cannot be used .*full.*; check the disk and its free space"
            ):
                build(request_many, backend=ReplayBackend(many))
        assert verify(request_many.out) == []
        assert contents(request_many.out)
        disks.grow(disk)
        report = build(request_many, backend=ReplayBackend(many))
        assert 0 < report.before < len(PROBLEMS) == report.before + report.measured
        assert contents(request_many.out) == contents(undisturbed.out)
        assert verify(request_many.out) == []


def test_a_full_disk_leaves_what_a_merge_or_pack_would_replace(many, tmp_path):
    big = tmp_path / "big.db"
    with Store.open(big) as store:
        store.add(many)
        store.refresh()
    with disks.small(tmp_path / "disk", "160k") as disk:
        out = disk / "table.db"
        with Store.open(out) as store:
            store.add(many[:4])
            store.refresh()
        before = out.read_bytes()
        with pytest.raises(TableError, match=f"^{out} .*full"):
            merge([out, big], out)
        with pytest.raises(TableError, match=r"table\.db.*full"):
            pack(big, out)
        assert out.read_bytes() == before
        assert [path.name for path in disk.iterdir()] == ["table.db"]


def test_a_read_only_folder_is_told_and_its_table_still_answers(request_many, many, tmp_path):
    with disks.small(request_many.out.parent, "16m") as disk:
        build(replace(request_many, minutes=1e-6), backend=ReplayBackend(many))
        build(request_many, backend=ReplayBackend(many[: 4 * 100]))
        with Store.open(request_many.out) as store:
            store._db.execute("DELETE FROM measurement WHERE problem = ?", (PROBLEMS[5].key,))  # One is left to do.
        (disk / "link.db").symlink_to(tmp_path / "elsewhere.db")
        disks.make_read_only(disk)
        told = "cannot be written: its folder is on a file system that is mounted read-only; name a file elsewhere$"
        with pytest.raises(TableError, match=rf"^\S*table\.db {told}"):
            build(request_many, backend=ReplayBackend(many))
        with pytest.raises(TableError, match=rf"^\S*new\.db {told}"):
            build(replace(request_many, out=disk / "new.db"), backend=ReplayBackend(many))
        with pytest.raises(TableError, match=r"its folder cannot be made \(Read-only"):
            build(replace(request_many, out=disk / "new" / "table.db"), backend=ReplayBackend(many))
        with pytest.raises(InputError, match=r"link\.db\.lock cannot be made \(Read-only .*; name another --out$"):
            build(replace(request_many, out=disk / "link.db"), backend=ReplayBackend(many))
        with pytest.raises(TableError, match=rf"^\S*table\.db {told}"):
            merge([request_many.out], request_many.out)
        with Table.open(request_many.out) as table:
            assert table.verdict(PROBLEMS[50], DEVICE).ratio == pytest.approx(0.6)


LOCKLESS = """
import sys
from pathlib import Path
from gemmdb.errors import GemmdbError
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store
for use in (Store.open, Table.open):
    try:
        use(Path(sys.argv[1]))
    except GemmdbError as error:
        print(error)
with Table.open(Path(sys.argv[1]), immutable=True) as table:
    print(len(table.devices()))
"""


def test_a_file_system_without_locks_is_told_apart_from_a_locked_table(tmp_path, many):
    out = tmp_path / "table.db"
    with Store.open(out) as store:
        store.add(many[:4])
        store.refresh()
    environment = {**os.environ, "LD_PRELOAD": disks.without_locks(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", LOCKLESS, str(out)], env=environment, capture_output=True, text=True, check=True
    )
    said = f"{out} is on a file system without file locks (no locks available); copy it to a local disk, or mount"
    *lines, devices = done.stdout.splitlines()
    assert [line.startswith(said) for line in lines] == [True, True]
    assert devices == "1"  # What an installation brings needs no locks.


def test_a_clock_that_jumps_changes_nothing(request_few, many):
    """Limits of time go by a clock that cannot be set. No source asks the other one, except for dates to show, and
    `doctor`, which repeats a check if the clock jumps."""
    asking = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("gemmdb", "generators", "cli")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name != "probe.py"
        for line in path.read_text().splitlines()
        if any(word in line for word in ("time.time(", "import time,", "from time import time", ".utcnow(", "time_ns("))
    ]
    assert asking == []
    with pytest.MonkeyPatch.context() as patch:
        chance = random.Random(0)
        patch.setattr(time, "time", lambda: chance.uniform(-1e9, 1e10))
        report = build(replace(request_few, minutes=5.0), backend=ReplayBackend(many, workers=2))
    assert (report.measured, report.left, report.interrupted) == (len(FEW), 0, False)
    assert verify(request_few.out) == []


HANGING = """#!/bin/sh
case "$*" in *--version*|*-dumpversion*) exec g++ "$@";; esac
sleep 600
"""


@pytest.mark.slow
def test_a_compiler_that_hangs_costs_its_candidates_and_leaves_no_process(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    compiler = tmp_path / "hanging"
    compiler.write_text(HANGING)
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv(victims.MARK, "hanging")
    problem, config = PROBLEMS[7], template(AUTO, AUTO)
    limits = Limits(graceful_s=0.2, terminate_s=0.3)
    measurer = CpuMeasurer(replace(named("quick"), compile_s=4.0), threads=1, compilers=1, limits=limits)
    try:
        start = time.monotonic()
        measurer._compilers[0].call(100, os.getpid)  # The imports are not the compiler's.
        measurer.prepare([Job(problem, Protocol("host", "hot", 1, 7), (Candidate(config),))])
        assert measurer._compiled[problem, config].status is Status.TIMEOUT
        assert time.monotonic() - start < 60
        assert not [one for one in victims.running("hanging") if one.kind == "compiler"]
    finally:
        measurer.close()
    assert victims.gone_after("hanging", 10.0) is not None


def _look_up(path, device, stop, answers):
    """Ask for every problem again and again, as eight processes that compile do."""
    seen = set()
    try:
        catalog = Catalog.load(Settings((), path, "aten"), tables=[path])
        while not stop.is_set():
            for problem in FEW:
                hit = lookup.answer(Query(problem, device), catalog, Policy())
                seen.add((hit.rung, hit.config.name) if hit else None)
        answers.put(seen)
    except BaseException as error:
        answers.put(repr(error))


def test_a_build_goes_on_while_eight_processes_look_up_in_its_file(request_few, many):
    context = multiprocessing.get_context("fork")
    build(replace(request_few, ops=("mm",), minutes=1e-9), backend=ReplayBackend(many))
    stop, answers = context.Event(), context.Queue()
    arguments = (request_few.out, DEVICE, stop, answers)
    readers = [context.Process(target=_look_up, args=arguments) for _ in range(8)]
    for reader in readers:
        reader.start()
    report = build(request_few, backend=ReplayBackend(many))
    stop.set()
    found = [answers.get(timeout=60) for _ in readers]
    for reader in readers:
        reader.join()
    assert report.measured + report.before == len(FEW)
    assert [one for one in found if isinstance(one, str)] == []
    assert verify(request_few.out) == []
    with Table.open(request_few.out) as table:
        assert {table.verdict(problem, DEVICE).pick for problem in FEW[1:]} <= {r.config for r in many}


CAMPAIGN = f"""
import sys
from pathlib import Path
sys.path.insert(0, {TESTS!r})
from kit.replay import CONFIGS, ReplayBackend, record
from gemmdb.generators import shapes
from gemmdb.generators.backend import Outcome
from gemmdb.generators.build.build import BuildRequest, build
from kit.replay import Replay
from gemmdb.processes.pool import IsolatedProcess
from gemmdb.table.measurement import Status

class Isolated(Replay):
    "Measures in a process that starts another one, as a compiler is."
    def __init__(self, rows):
        super().__init__(rows)
        self.process = IsolatedProcess()
    def measure(self, problem, configs, *rest):
        run = "import subprocess; subprocess.run(['sleep', '0.1'], check=True)"
        if (reply := self.process.call(30, exec, run)).status is not Status.OK:
            return [Outcome(config, reply.status, detail=reply.detail) for config in configs]
        return super().measure(problem, configs, *rest)
    def close(self):
        self.process.close()

rows = [record(p, c, us) for p in shapes.load(sys.argv[1], "cpu") for c, us in zip(CONFIGS, {TIMES})]
build(BuildRequest(shapes=sys.argv[1], out=Path(sys.argv[2])), backend=ReplayBackend(rows, replay=Isolated))
"""


def test_builds_whose_processes_are_killed_at_random_give_what_an_undisturbed_one_gives(tmp_path):
    """`python -m benchmarks.stress kills` does this with real builds, a hundred times."""
    shapes = kills.write_shapes(tmp_path / "shapes.jsonl", PROBLEMS[1:11])
    driver = (sys.executable, "-c", CAMPAIGN)
    campaign = kills.Campaign(tmp_path, shapes, 0.6, random.Random(5), driver)
    wanted = campaign.undisturbed(tmp_path / "undisturbed.db")
    out = tmp_path / "killed.db"
    done = campaign.round(out, 10)
    assert done.killed.total() >= 6
    assert (done.faults, done.orphans) == ([], 0)
    assert done.longest_s < kills.LIMIT_S
    found = differences(wanted, contents(out))
    assert (found["missing"], found["more"], found["untimed"]) == ([], [], [])
