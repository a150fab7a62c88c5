"""Predictions are remembered: a compile asks about a product several times, of several rungs.

An answer depends on the arguments and the tables alone, so it may be remembered as long as none of these change. A
table that is written has another `state` then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from gemmdb.cost.transfer import fitted
from gemmdb.lookup.ask import Ask
from gemmdb.table.reader import Table

_KEPT = 4096
"""The most questions whose answers are remembered per catalog."""

T = TypeVar("T")
_known: WeakKeyDictionary[Table, dict[object, dict[str, Any]]] = WeakKeyDictionary()
"""By the first table of a catalog: the answers to each question, by name."""


def remembered(ask: Ask, name: str, compute: Callable[[Ask], T]) -> T:
    """What `compute` says to `ask`. Nothing is remembered of a table that could not be read."""
    if not ask.tables:
        return compute(ask)
    answers = ask.memo.get("answers")
    if answers is None:
        answers = ask.memo["answers"] = _answers(ask)
    found = answers.get(name)
    if found is not None:
        return cast("T", found)
    found = compute(ask)
    if not ask.faults:
        answers[name] = found
    return found


def forget() -> None:
    """Forget all answers."""
    _known.clear()


def _answers(ask: Ask) -> dict[str, Any]:
    """The answers to this very question so far."""
    questions = _known.setdefault(ask.tables[0], {})
    if len(questions) >= _KEPT:
        questions.clear()
    return questions.setdefault(_key(ask), {})


def _key(ask: Ask) -> object:
    query, device = ask.query, ask.device
    states = tuple(ask.read(Table.state, table) for table in ask.tables)
    figures = tuple(device.figures.items())
    left_out = tuple(ask.left_out) if ask.left_out else ()
    return (
        query.problem.text, ask.symbolic, query.l2, device.key, figures, ask.policy, ask.toolchain, left_out,
        ask.tables[1:], states, fitted(),
    )  # fmt: skip
