"""Builds over a real Ray cluster of several nodes on this machine, against plain builds of the same problems."""

import contextlib
import functools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from kit.replay import Watcher, stored

from gemmdb.errors import GemmdbError
from gemmdb.generators.build.build import BuildRequest
from gemmdb.generators.build.build import build as plain_build
from gemmdb.generators.cluster.node import Site
from gemmdb.key.device import Device
from gemmdb.table.measurement import Status
from gemmdb.table.reader import Table

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
"""All tests of the cluster are slow ones: it is started in one of the two steps of CI, for half a minute."""
HERE = Path(__file__).parent
MANY = [(m, 64) for m in range(1, 25)]
LIMIT_S = 300.0
"""How long anything may take. An actor starts in a second, or in a minute where others keep the processors busy."""


def contents(path):
    return Counter((row.problem.text, row.config.text, row.status.value, row.device.text) for row in stored(path))


def verdicts(path):
    with Table.open(path) as table:
        found = {(row.problem, row.device) for row in table.measurements()}
        return {(p.text, d.text): table.verdict(p, d).pick.text for p, d in found if table.verdict(p, d)}


def plain(workload, out, device):
    """A build of the same workload without a cluster."""
    from recorded_node import NodeBackend

    plain_build(BuildRequest(arch="cpu", shapes=str(workload), out=out), backend=NodeBackend(device, 0.0))
    return out


def over(nodes, workload, out, delay=0.02, gate=None, **more):
    from recorded_node import NodeBackend

    from gemmdb.generators.cluster.build import build

    request = BuildRequest(arch="native", shapes=str(workload), out=out, ray=nodes.address)
    return build(request, site=Site(make=functools.partial(NodeBackend, delay=delay, gate=gate)), **more)


@pytest.fixture
def driver(nodes):
    """Start a build over the cluster in a process of its own."""
    started = []

    def begin(workload, out, delay, *gate):
        command = [sys.executable, HERE / "run_build.py", nodes.address, workload, out, delay, *gate]
        started.append(subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def rows(path):
    try:
        return contents(path).total()
    except (OSError, GemmdbError):
        return 0


def until(true):
    end = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_table_is_that_of_a_plain_build(nodes, workload, tmp_path):
    path, out, watcher = workload(*MANY), tmp_path / "over.db", Watcher()
    (report,) = over(nodes, path, out, progress=watcher)
    assert (report.measured, report.left, report.workers, report.warnings) == (24, 0, 2, ())
    alone = plain(path, tmp_path / "plain.db", report.device)
    assert contents(out) == contents(alone)
    assert verdicts(out) == verdicts(alone)
    phases = [state.phase for state in watcher.states]
    assert (phases[0], phases[-1]) == ("starting", "finished")
    assert {"racing", "confirming"} <= set(phases)
    assert watcher.states[-1].done == watcher.states[-1].total == 24
    with Table.open(out) as table:
        (run,) = table.provenance()
    assert "ray" not in run["request"]  # The address of a cluster is nobody's business.
    (again,) = over(nodes, path, out)
    assert (again.before, again.measured) == (24, 0)


def ended(file):
    """Whether the process that a file is named after has ended; its parent may not have asked."""
    try:
        return Path(f"/proc/{file.name}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_what_a_lost_node_was_measuring_is_measured_by_another(nodes, workload, tmp_path):
    from recorded_node import Gate

    path, out, held = workload(*MANY), tmp_path / "over.db", tmp_path / "held"
    lost = nodes.add()
    held.mkdir()

    def lose():
        try:
            until(lambda: len(list(held.iterdir())) == 3)  # All three measure.
            nodes.remove(lost)
            until(lambda: any(map(ended, held.iterdir())))  # On a busy machine, its process could still answer.
        finally:
            (held / "open").touch()

    thread = threading.Thread(target=lose)
    thread.start()
    (report,) = over(nodes, path, out, gate=Gate(str(held)))
    thread.join()
    assert (report.measured, report.left, report.workers) == (24, 0, 3)
    assert report.warnings == ("workers of the cluster lost: 1; what they were measuring went to others",)
    assert contents(out) == contents(plain(path, tmp_path / "plain.db", report.device))


def test_what_ends_three_workers_or_never_ends_is_set_aside(nodes, workload, tmp_path):
    path, out = workload((1, 64), (2, 72), (3, 80), (4, 64)), tmp_path / "over.db"
    (report,) = over(nodes, path, out, late_s=10.0)
    assert (report.measured, report.left) == (4, 0)
    assert report.warnings == ("workers of the cluster lost: 6; what they were measuring went to others",)
    found = {n: {row.status for row in stored(out) if row.problem.n == n} for n in (64, 72, 80)}
    details = {row.detail for row in stored(out) if row.problem.n == 72}
    assert found == {64: {Status.OK, Status.WRONG, Status.ILLEGAL}, 72: {Status.OOM}, 80: {Status.TIMEOUT}}
    assert details == {"set aside: its workers went away"}
    (again,) = over(nodes, workload((1, 64), (2, 72), (4, 64)), out)
    assert (again.before, again.measured) == (2, 1)  # What lost its workers is tried again.


def test_kills_of_workers_nodes_and_the_driver_at_random_times_change_nothing(nodes, workload, tmp_path, driver):
    path, out, chance = workload(*((m, 64) for m in range(1, 31))), tmp_path / "over.db", random.Random(21)
    victims = ["worker"] * 3 + ["node"] + ["driver"] * 2
    chance.shuffle(victims)
    extra, process, killed = nodes.add(), driver(path, out, 0.15), Counter()
    for victim in victims:
        until(lambda now=process: _actors() or now.poll() is not None)
        time.sleep(chance.uniform(0.2, 1.0))
        if process.poll() is not None:
            break
        if victim == "worker":
            for actor in _actors()[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(actor, signal.SIGKILL)
        elif victim == "node":
            nodes.remove(extra)
        else:
            process.kill()
            process.wait()
            process = driver(path, out, 0.15)
        killed[victim] += 1
    assert process.wait(LIMIT_S) == 0
    assert killed.total() >= 4
    if not killed["node"]:
        nodes.remove(extra)
    assert set(contents(out)) == set(contents(plain(path, tmp_path / "plain.db", stored(out)[0].device)))
    until(lambda: not _actors())


def test_one_command_builds_for_every_kind_of_device_and_an_interrupt_ends_all(nodes, workload, tmp_path, driver):
    path, out, watcher, held = workload(*MANY[:10]), tmp_path / "over.db", Watcher(), tmp_path / "held"
    held.mkdir()
    node = nodes.add(Device("cpu", "cpu", "Test CPU", 4, isa="avx2"))
    try:
        process = driver(path, out, 0.02, held, 5)  # Half of the GEMMs wait, so neither build can end.
        until(lambda: len({row[3] for row in contents(out)}) == 2 if rows(out) else False)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=LIMIT_S)
        until(lambda: not _actors())
        reports = over(nodes, path, out, progress=watcher)
    finally:
        nodes.remove(node)
    assert process.returncode == 0
    found = [line.split()[:5] for line in said.splitlines()]
    assert [line[4] for line in found] == ["True", "True"]  # Both were interrupted, and said so.
    assert all(0 < int(line[1]) < 10 for line in found)
    assert [report.device.units for report in reports] == [2, 4]
    assert [(report.before + report.measured, report.left) for report in reports] == [(10, 0)] * 2
    assert watcher.states[-1].total == watcher.states[-1].done == 20
    alone = contents(plain(path, tmp_path / "plain.db", reports[0].device))
    alone += contents(plain(path, tmp_path / "other.db", replace(reports[0].device, units=4)))
    assert set(contents(out)) == set(alone)


def _actors():
    """The processes of the measuring actors of this test's cluster."""
    mark = f"GEMMDB_TEST_CLUSTER={os.getpid()}\0"
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                if "ray::Measuring" in (folder / "cmdline").read_text() and mark in (folder / "environ").read_text():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found
