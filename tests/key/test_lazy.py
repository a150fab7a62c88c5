"""`lazy` computes a value once and holds no lock."""

import os
import threading
import time

from gemmdb.key.canonical import lazy


class Squared:
    def __init__(self, number: int, compute=lambda: None) -> None:
        self.number, self.compute, self.times = number, compute, 0

    @lazy
    def square(self) -> int:
        self.times += 1
        self.compute()
        return self.number**2


def test_a_value_is_computed_once_for_each_instance() -> None:
    two, three = Squared(2), Squared(3)
    assert [two.square, three.square, two.square] == [4, 9, 4]
    assert (two.times, three.times) == (1, 1)
    assert isinstance(Squared.square, lazy)


def test_a_process_that_is_forked_meanwhile_does_not_wait() -> None:
    """`functools.cached_property` of Python 3.11 has one lock per class, and a copy of it that nobody would release."""
    began, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: Squared(2, lambda: (began.set(), go_on.wait(30))).square)
    thread.start()
    assert began.wait(10)
    pid = os.fork()
    if not pid:
        os._exit(0 if Squared(3).square == 9 else 1)
    ended, until = (0, 0), time.monotonic() + 10
    while not ended[0] and time.monotonic() < until:
        ended = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.01)
    go_on.set()
    thread.join()
    if not ended[0]:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    assert ended == (pid, 0)
