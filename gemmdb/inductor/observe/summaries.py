"""What gemmdb did for a program, for a person: `summary()`, and one line in the log for each graph."""

from __future__ import annotations

import functools
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from gemmdb.hit import RUNGS
from gemmdb.inductor.decide.legality import ONLY_ATEN
from gemmdb.inductor.observe.journal import JOURNAL, SEARCH, Event
from gemmdb.inductor.observe.summary_text import ALONE, Answers, Product, Summary
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.ladder.ask import Ask
from gemmdb.ladder.saving import saving
from gemmdb.settings import Policy

log = logging.getLogger("gemmdb")
NOT_TUNED = "not tuned: "
ORDER = (*RUNGS, "forced", "live", "aten", ALONE)


def summary() -> Summary:
    """What gemmdb did since the start or `reset_stats`, also for graphs that came from a warm cache."""
    return of_events(list(JOURNAL.events), JOURNAL.graphs, list(JOURNAL.errors))


def of_events(events: Iterable[Event], graphs: int, errors: Sequence[str] = ()) -> Summary:
    """The summary of the events of `graphs` graphs."""
    answers = {rung: Answers(rung) for rung in ORDER}
    alike: dict[tuple[str, ...], list[Event]] = defaultdict(list)
    uncovered: Counter[str] = Counter()
    for event in events:
        if event.rung == "uncovered":
            uncovered[event.problem] += 1
        else:
            rung = ALONE if _alone(event) else event.rung
            answers[rung] = answers.get(rung, Answers(rung)) + replace(_answer(event), rung=rung)
            alike[event.outcome].append(event)
    gains, missed, refused, alone, searched = [], [], [], [], []
    for same in alike.values():
        one, gained = same[0], sum(_answer(event).gain_us for event in same)
        if _alone(one):
            alone.append(Product(_named(one), len(same), one.config, None, _no_other(one.note)))
        elif one.config == SEARCH:
            searched.append(Product(_named(one), len(same), one.config, None, ""))
        elif one.rung == "aten":
            missed.append(_missed(one, len(same)))
        elif one.config == ATEN.text and one.note and one.rung != "live":  # A tuned product's note is why it was tuned.
            refused.append(Product(_named(one), len(same), one.config, None, one.note))
        elif gained > 0:
            why = one.note if "horizontal" in one.evidence else ""
            gains.append(Product(_named(one), len(same), one.config, gained, why))
    return Summary(
        graphs,
        tuple(found for found in answers.values() if found.count),
        tuple(sorted(gains, key=lambda one: -(one.us or 0.0))),
        tuple(sorted(missed, key=lambda one: (-(one.us or 0.0), one.problem))),
        tuple(refused),
        dict(uncovered),
        tuple(errors),
        tuple(alone),
        tuple(searched),
    )


def log_graph(events: Sequence[Event], _artefact: Any = None) -> None:
    """Log one line about a graph that became ready. Never fails the compile."""
    if not log.isEnabledFor(logging.INFO):
        return
    try:
        log.info("%s", of_events(events, 1).line)
    except Exception as error:
        log.debug("no summary of a graph: %s", error)


def _alone(event: Event) -> bool:
    """Whether no kernel but ATen can serve it, so that it is no miss."""
    return event.rung == "aten" and ONLY_ATEN in event.note


def _no_other(note: str) -> str:
    """Why no other kernel can serve a product: that part of its note."""
    return note.partition(ONLY_ATEN)[2].partition("; ")[0].removeprefix(": ")


def _answer(event: Event) -> Answers:
    """One product's answer."""
    kernels, us, speedup = int(event.config not in (ATEN.text, SEARCH)), event.expected_us, event.speedup
    if not us or not speedup:
        return Answers(event.rung, 1, kernels)
    return Answers(event.rung, 1, kernels, 1, us * speedup, us)


def _missed(one: Event, count: int) -> Product:
    """So many products without an answer. The note has what every rung said, after why it was not tuned."""
    saved_us, why = _saved_us(one.problem, one.device), one.note.split("; ")[0]
    us = None if saved_us is None else count * saved_us
    return Product(_named(one), count, "", us, why if why.startswith(NOT_TUNED) else "no table answers")


@functools.lru_cache(maxsize=4096)
def _saved_us(problem: str, device: str) -> float | None:
    """The microseconds that the best kernel may save of a call, None if nothing can be said."""
    try:
        asked = Query(Problem.parse(problem), Device.parse(device))
        found = saving(Ask(asked, (), Policy(), None))
    except Exception as error:
        log.debug("no estimate for %s: %s", problem, error)
        return None
    return None if found is None else found.us


def _named(one: Event) -> str:
    """A short name of a problem: op, sizes, dtypes, fusion, ranges."""
    try:
        problem = Problem.parse(one.problem)
    except Exception:
        return one.problem
    dtypes = dict.fromkeys((problem.a.dtype, problem.b.dtype))
    fused = "" if problem.fusion == "none" else f" +{problem.fusion}"
    ranges = (f" ({name} {low} to {'any' if high is None else high})" for name, (low, high) in one.ranges.items())
    return f"{problem.head} {' x '.join(dtypes)}{fused}{''.join(ranges)}"
