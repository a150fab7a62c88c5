"""Builds as processes: killed and run again, two at once into one file."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gemmdb.errors import GemmdbError, InputError
from gemmdb.generators.build import queue
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.effort import named
from gemmdb.table.reader import Table


def contents(path: Path) -> set[tuple[str, str, str]]:
    table = Table.open(path)
    found = {(row.problem.text, row.config.text, row.status.value) for row in table.measurements()}
    table.close()
    return found


def count(path: Path) -> int:
    table = Table.open(path)
    found = sum(1 for _ in table.measurements())
    table.close()
    return found


SCRIPT = """
import sys, time
from pathlib import Path
sys.path.insert(0, {here!r})
from conftest import ReplayBackend, record, CONFIGS
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators import shapes
from gemmdb.generators.measure.replay import Replay
from gemmdb.table.measurement import Status

class Slow(Replay):
    def measure(self, *args):
        time.sleep(0.03)
        return super().measure(*args)

problems = shapes.load(sys.argv[1], "cpu")
rows = [record(p, c, us, Status.WRONG if us == 1 else Status.OK)
        for p in problems for c, us in zip(CONFIGS, (100.0, 80.0, 60.0, 1.0))]
report = build(BuildRequest(shapes=sys.argv[1], out=Path(sys.argv[2])), backend=ReplayBackend(rows, replay=Slow))
print(report.measured, report.elsewhere, report.before)
"""


@pytest.fixture
def start(request_):
    """Start a build of the request in a process of its own."""
    script = SCRIPT.format(here=str(Path(__file__).parents[1]))
    command = [sys.executable, "-c", script, request_.shapes, str(request_.out)]
    started = []

    def begin():
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def test_after_kill_9_a_rerun_gives_what_an_undisturbed_build_gives(request_, start, replay_backend, rows, tmp_path):
    undisturbed = tmp_path / "undisturbed.db"
    build(BuildRequest(shapes=request_.shapes, out=undisturbed), backend=replay_backend(rows))
    killed = 0
    for wait in (0.0, 0.1, 0.2):
        process = start()
        while process.poll() is None and not _has_rows(request_.out):
            time.sleep(0.01)
        time.sleep(wait)
        os.kill(process.pid, signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
    assert killed
    finished = start()
    measured, _, before = map(int, finished.communicate(timeout=60)[0].split())
    assert measured + before == 7
    assert contents(request_.out) == contents(undisturbed)


def test_two_builds_at_once_share_the_work(request_, start, replay_backend, rows, tmp_path):
    alone = tmp_path / "alone.db"
    build(BuildRequest(shapes=request_.shapes, out=alone), backend=replay_backend(rows))
    reports = [process.communicate(timeout=60)[0].split() for process in [start(), start()]]
    measured = [int(report[0]) for report in reports]
    assert sum(measured) == 7
    assert all(sum(map(int, report)) == 7 for report in reports)
    assert contents(request_.out) == contents(alone)


def _has_rows(path):
    try:
        return count(path) > 0
    except (OSError, GemmdbError):
        return False


def test_claims_are_lifted_with_their_process(request_, start, replay_backend, rows, problems):
    request_.out.parent.mkdir()
    backend = replay_backend(rows)
    job = queue.jobs(problems[:1], backend, named("quick"))[0]
    script = (
        "import sys, fcntl, os; d = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644);"
        "fcntl.lockf(d, fcntl.LOCK_EX, 1, int(sys.argv[2])); print('held', flush=True); sys.stdin.read()"
    )
    lock = f"{request_.out}.lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", script, lock, str(queue._byte(job))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout.readline() == "held\n"
    with queue.Claims(request_.out) as claims:
        assert not claims.take(job)
        done = threading.Event()
        work = queue.Work([job], request_.out, backend, named("quick"), claims)
        thread = threading.Thread(target=lambda: (work.take(1), done.set()))
        thread.start()
        assert not done.wait(0.3)
        holder.kill()
        holder.wait()
        assert done.wait(5)
        thread.join()


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path):
    """In a shared folder, another user may have put it there."""
    outside = tmp_path / "outside"
    (tmp_path / "t.db.lock").symlink_to(outside)
    with pytest.raises(InputError, match=r"t\.db\.lock cannot be opened"), queue.Claims(tmp_path / "t.db"):
        pass
    assert not outside.exists()


def test_all_who_may_write_the_folder_can_claim_work(tmp_path):
    before = os.umask(0o002)
    try:
        with queue.Claims(tmp_path / "t.db"):
            assert (tmp_path / "t.db.lock").stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)
