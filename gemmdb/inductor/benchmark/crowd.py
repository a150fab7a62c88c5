"""Whether other programs leave processors to compile the candidates of quick live tuning."""

from __future__ import annotations

from time import monotonic

from gemmdb.devices import detect, load
from gemmdb.inductor.benchmark import live_rules as rules
from gemmdb.key.device import Device
from gemmdb.settings import Policy

BUSY = 0.5
"""The share of the processors that others keep busy from which on there is no time for quick tuning."""
SAMPLE_S = 0.2
"""How long the load is looked at, in seconds. Only what would be tuned waits for it."""
HOLDS_S = 10.0
"""For how long an answer holds, in seconds: all products of a compile get the same one."""

_asked_s, _answer = float("-inf"), ""


def crowded(device: Device, policy: Policy) -> str:
    """Why quick tuning on the device is of no use now; empty if it may be. What this process and its children do does
    not count. Whoever asks for `live` by name waits, and so does a CPU, where nothing is tuned that nobody asks for.

    13 of 28 programs that were compiled ten at a time on 16 processors tuned products, and none got a result in time.
    """
    global _asked_s, _answer
    if device.kind != "cuda" or rules.patient(policy):
        return ""
    if monotonic() - _asked_s >= HOLDS_S:
        found, processors = load.now(SAMPLE_S), detect.cores()
        busy = found is not None and found.others > BUSY * processors
        _answer = f"{found.text} of {processors}; `gemmdb tune` measures it at a better time" if found and busy else ""
        _asked_s = monotonic()
    return _answer
