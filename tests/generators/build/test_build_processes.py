"""Builds as processes: two at once into one file, and their claims."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kit.replay import ReplayBackend, contents

from gemmdb.errors import InputError
from gemmdb.generators.build import queue
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.effort import named

SCRIPT = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from kit.replay import ReplayBackend, Slow, rows_of
from gemmdb.generators import shapes
from gemmdb.generators.build.build import BuildRequest, build

rows = rows_of(shapes.load(sys.argv[1], "cpu"))
report = build(BuildRequest(shapes=sys.argv[1], out=Path(sys.argv[2])), backend=ReplayBackend(rows, replay=Slow))
print(report.measured, report.elsewhere, report.before)
"""


def test_two_builds_at_once_share_the_work(request_, rows, tmp_path):
    """Builds that are killed and run again: test_build_faults.py."""
    alone = tmp_path / "alone.db"
    build(BuildRequest(shapes=request_.shapes, out=alone), backend=ReplayBackend(rows))
    command = [sys.executable, "-c", SCRIPT, request_.shapes, str(request_.out)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in "ab"]
    reports = [list(map(int, process.communicate(timeout=60)[0].split())) for process in both]
    assert sum(measured for measured, *_ in reports) == 7
    assert all(sum(report) == 7 for report in reports)
    assert contents(request_.out) == contents(alone)


def test_claims_are_lifted_with_their_process(request_, rows, problems):
    request_.out.parent.mkdir()
    backend = ReplayBackend(rows)
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
        thread = threading.Thread(target=lambda: (work.take(), done.set()))
        thread.start()
        assert not done.wait(0.3)
        holder.kill()
        holder.wait()
        assert done.wait(60)
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
