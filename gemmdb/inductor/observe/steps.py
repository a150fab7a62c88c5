"""What to do about GEMMs of compiled graphs that run without a kernel, in the words of the commands."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Iterable, Sequence

from gemmdb.advice import Act, Advice, Situation, advise, of_reason, refusal, tighter
from gemmdb.inductor.observe.journal import Event
from gemmdb.inductor.observe.stats import tune_line
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query, symbolic
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.saving import saving
from gemmdb.outcome import DISTURBED, Kind
from gemmdb.settings import Policy

log = logging.getLogger("gemmdb")


def unbuilt(event: Event) -> str:
    """Return why a build does not measure the range of a GEMM; empty for fixed sizes, and if it does."""
    if not symbolic(event.ranges):
        return ""
    from gemmdb.lookup.acceptance import ranges  # It imports the rungs, which enabling gemmdb does not need.

    try:
        ends = {name: (low, high) for name, (low, high) in event.ranges.items()}
        asked = Query(Problem.parse(event.problem), Device.parse(event.device), ends, computed=event.computed)
        return str(ranges.unbuilt(asked) or "")
    except Exception as error:
        log.debug("no estimate for %s: %s", event.problem, error)
        return ""


def is_built(why: str) -> bool:
    """Return whether a build measures a GEMM of which nothing is known for this reason."""
    return why != DISTURBED and of_reason(why) is Act.BUILD


def steps(gemms: Iterable[Sequence[Event]]) -> tuple[Advice, ...]:
    """Return what to do about GEMMs, the same ones together; never empty."""
    left_out: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    narrower = []
    for same in gemms:
        one, found = same[0], same[0].outcome
        if one.only_aten:
            continue
        if found.kind is Kind.ATEN_REFUSED:
            left_out[refusal(found)] += len(same)
            narrower += [tighter(found, one.evidence)] * len(same)
        elif found.kind is Kind.ATEN_UNKNOWN and (why := unbuilt(one)):
            left_out[why] += len(same)
            numbers["largest"] = max(numbers["largest"], Problem.parse(one.problem).m)
        elif found.kind is Kind.ATEN_UNKNOWN:
            numbers["disturbed" if found.disturbed else "unknown"] += len(same)
    return advise(Situation(
        left_out, numbers["unknown"], disturbed=numbers["disturbed"], command=tune_line(), build=tune_line(),
        largest=numbers["largest"], tighter=[ends for ends in narrower if ends],
    ))  # fmt: skip


@functools.lru_cache(maxsize=4096)
def saved_us(problem: str, device: str) -> float | None:
    """Estimated microseconds per call that the best kernel may save, None if unknown."""
    try:
        asked = Query(Problem.parse(problem), Device.parse(device))
        found = saving(Ask(asked, (), Policy(), None))
    except Exception as error:
        log.debug("no estimate for %s: %s", problem, error)
        return None
    return None if found is None else found.us
