"""Timings of several programs on one GPU take turns, and their compiles do not."""

import threading
import time

from torch._inductor.runtime.benchmarking import benchmarker

from benchmarks.programs import locks
from gemmdb.inductor.benchmark import algorithm_trial, client, limits
from gemmdb.phases import PHASES


def test_timings_take_turns_and_their_waiting_is_counted(tmp_path):
    running, most = [], []

    def timing(seconds):
        running.append(1)
        most.append(len(running))
        time.sleep(seconds)
        running.pop()
        return seconds

    turns = [locks.Turns(tmp_path / "gpu.lock") for _ in range(3)]
    threads = [threading.Thread(target=one.take(timing), args=(0.05,)) for one in turns]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]
    assert sum(one.waited_s for one in turns) > 0.1


def test_a_timing_within_a_timing_does_not_wait_for_itself(tmp_path):
    turns = locks.Turns(tmp_path / "gpu.lock")
    inner = turns.take(lambda: 1)
    assert turns.take(lambda: inner() + 1)() == 2
    assert turns.waited_s < 1


def test_timings_of_inductor_and_of_gemmdb_wait_for_the_lock_only_within(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "tune", lambda requests: requests)
    before, tune, race = benchmarker.benchmark_gpu, client.tune, algorithm_trial.race
    done, watch = threading.Event(), PHASES.clock

    def search():
        client.tune(())
        done.set()

    with locks.in_turns(tmp_path / "gpu.lock") as turns:
        assert client.tune is not tune
        assert algorithm_trial.race is not race
        assert benchmarker.benchmark_gpu != before
        with locks.alone(tmp_path / "gpu.lock"):
            other = threading.Thread(target=search)
            other.start()
            assert not done.wait(0.1)
        other.join()
        assert done.is_set()
        # The waiting is not charged to any step of gemmdb.
        assert time.monotonic() - limits.now() > 0.09
        assert watch() - PHASES.clock() > 0.09
    assert turns.waited_s > 0.09
    assert client.tune is tune
    assert algorithm_trial.race is race
    assert PHASES.clock is watch
    assert benchmarker.benchmark_gpu == before
    assert limits.now is time.monotonic
