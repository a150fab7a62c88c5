"""Writers wait in a queue, so that each gets its turn."""

from __future__ import annotations

import multiprocessing
import threading
import time
from pathlib import Path

import pytest

from gemmdb.generators.files.verify import verify
from gemmdb.table import file_locks
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store, record_live

context = multiprocessing.get_context("fork")
TIMEOUT_S = 120.0
"""Longer than any wait of these tests on a machine that others keep busy."""


def _waiting(path):
    """How many wait for the queue lock of a table, as Linux lists them."""
    inode = Path(f"{path}.turn").stat().st_ino
    found = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return sum(line[1] == "->" and line[6].endswith(f":{inode}") for line in found)


def _until(true):
    end = time.monotonic() + TIMEOUT_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs a list of those who wait for a lock")
def test_turns_are_in_order_of_arrival(tmp_path):
    path, order, threads = tmp_path / "t.db", [], []

    def wait(number):
        with file_locks.queue(path, TIMEOUT_S):
            order.append(number)

    with file_locks.queue(path, TIMEOUT_S):
        for number in range(5):
            threads.append(threading.Thread(target=wait, args=(number,)))
            threads[-1].start()
            _until(lambda: _waiting(path) == len(threads))
        assert order == []
    for thread in threads:
        thread.join()
    assert order == list(range(5))


def test_a_writer_that_times_out_goes_on_and_blocks_no_other(tmp_path):
    path = tmp_path / "t.db"
    with file_locks.queue(path, TIMEOUT_S):
        start = time.monotonic()
        with file_locks.queue(path, 0.2):
            assert 0.2 <= time.monotonic() - start < TIMEOUT_S / 2
    start = time.monotonic()
    with file_locks.queue(path, TIMEOUT_S):
        assert time.monotonic() - start < TIMEOUT_S / 2


def test_without_a_folder_to_write_there_is_no_queue(tmp_path):
    with (
        file_locks.queue(tmp_path / "no" / "folder" / "t.db", TIMEOUT_S),
        file_locks.queue(tmp_path / "a\0b", TIMEOUT_S),
    ):
        assert not file_locks.has_queue(tmp_path / "a\0b")


def test_a_writer_alone_makes_no_queue_and_no_other_file(kit, tmp_path):
    path = kit.write(tmp_path / "t.db", [kit.row()])
    with Table.open(path) as table:
        table.verdict(kit.problem, kit.device)
        assert [file.name for file in tmp_path.iterdir()] == [path.name]
    with Store.open(path) as one, one.transaction():
        assert not file_locks.has_queue(path)


def _write(kit, path, number, barrier):
    barrier.wait()
    for again in range(2):
        problem = kit.problem.resized(1 + number, 8 + 8 * again, 8)
        record_live(path, [kit.row(problem=problem), kit.row(kit.configs[1], 5.0, problem=problem)], busy_s=TIMEOUT_S)


def test_many_programs_that_tune_at_once_all_write(kit, tmp_path):
    """`python -m benchmarks.stress writers` does it with two hundred."""
    path, barrier = tmp_path / "user.db", context.Barrier(24)
    writers = [context.Process(target=_write, args=(kit, path, number, barrier)) for number in range(24)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 24
    with Table.open(path) as table:
        assert len(list(table.measurements())) == 96
    assert verify(path) == []
