"""How fast this machine compiles, by the processor time of a small piece of C++: a clue to how long builds take before
anything was built here."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from contextlib import suppress
from threading import Timer
from time import monotonic

UNIT = b"#include <vector>\n"
"""What is compiled: the parser of a C++ compiler does most of what compiling a kernel takes."""
USUAL_S = 0.24
"""Seconds of processor time that UNIT takes on the machine of `gemmdb.generators.estimate.RATES`. Two cores of an EPYC
took 0.13 to 0.20 with priority over other programs, and for a template of a GEMM 0.55 to 0.78 of the rate."""
STEADY = 0.25
"""Part of the time that does not change with the compiler's speed. An EPYC that takes a third of USUAL_S, and of the
rate for a template, takes half of the time for a whole build."""
TRIES = 2
"""How often it is compiled. The faster time counts: the first one may read the compiler from the disk."""
LIMIT_S = 3.0
"""Most seconds for a try, and for all of them. It takes a tenth on an idle machine."""
LEAST, MOST = 0.3, 5.0
"""Bounds of the result: a wrong clue does less harm."""


@functools.cache
def slowness() -> float:
    """Return how many times as long as on the machine of the rates a build takes here; 1 if that cannot be found out,
    by the time to compile something. It is processor time: that other programs have the processor makes no difference,
    but that they share its caches and its memory does."""
    times: list[float] = []
    begun = monotonic()
    while len(times) < TRIES and (left_s := LIMIT_S - (monotonic() - begun)) > 0:
        if not (seconds := _compile_s(left_s)):
            break
        times.append(seconds)
    return min(max(STEADY + (1 - STEADY) * min(times) / USUAL_S, LEAST), MOST) if times else 1.0


def _compile_s(limit_s: float) -> float | None:
    """Return the seconds of processor time to compile UNIT; None if there is no compiler, or it fails, or takes longer
    than `limit_s` by the clock."""
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")  # As Inductor does.
    command = [compiler, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
    with suppress(OSError, AttributeError):  # Windows has no `wait4`.
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        timer = Timer(limit_s, process.kill)
        timer.start()
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin:
                process.stdin.write(UNIT)
            _, status, used = os.wait4(process.pid, 0)
        finally:
            timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        return used.ru_utime + used.ru_stime if process.returncode == 0 else None
    return None
