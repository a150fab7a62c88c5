"""Whether other programs leave processors to compile the candidates of quick live tuning."""

from __future__ import annotations

from time import monotonic

from gemmdb.devices import detect, load

BUSY = 0.5
"""The share of the processors that others keep busy from which on there is no time for quick tuning."""
HOLDS_S = 10.0
"""For how long an answer holds, in seconds: all products of a compile get the same one."""
LATELY_S = 60.0
"""How far back the load is looked at, in seconds."""

_before = load.reading()
_asked_s, _answer = float("-inf"), ""


def crowded() -> str:
    """Why quick tuning is of no use now; empty if it may be. What this process and its children do does not count.

    13 of 28 programs that were compiled ten at a time on 16 processors tuned products, and none got a result in time.
    """
    global _before, _asked_s, _answer
    if monotonic() - _asked_s < HOLDS_S:
        return _answer
    after = load.reading()
    found = load.between(_before, after)
    processors = detect.cores()
    busy = found is not None and found.others > BUSY * processors
    _answer = f"{found.text} of {processors}; `gemmdb tune` measures it at a better time" if found and busy else ""
    _asked_s = monotonic()
    if _before is None or (after is not None and after.at - _before.at > LATELY_S):
        _before = after
    return _answer
