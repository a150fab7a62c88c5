"""What to do while other programs use the machine: wait as `--wait` says, or ask on a terminal."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from typer import Option

from gemmdb.cli.output import note
from gemmdb.devices import load
from gemmdb.devices.load import Load

if TYPE_CHECKING:
    from gemmdb.generators.measure.remeasured import Remeasured
    from gemmdb.generators.request import BuildReport

ASK_S = 5.0
"""Seconds to wait for a quiet machine before the question."""
DAY_S = 86400.0
"""Most seconds that the answer `wait` waits."""
PASTED_WAIT = "1h"
"""The --wait of a command to paste."""
QUESTION = "wait until they end (w), stop (s), or measure anyway (m: disturbed timings are not used)? "
WAIT, WAITING = "1m", "waiting; Ctrl-C stops"
_HELP = (
    "How long to wait while other programs use the machine, and then to stop: 90s, 10m. 0s measures anyway; disturbed"
    " timings are not used"
)
AskOption = Annotated[
    str | None,
    Option(metavar="TIME", help=f"{_HELP} [default: ask on a terminal, else {WAIT}].", show_default=False),
]
"""--wait of a command that asks."""


class Answer(StrEnum):
    """What the user wants on a busy machine."""

    WAIT = "wait"
    STOP = "stop"
    MEASURE = "measure anyway"


@dataclass(frozen=True)
class Again:
    """How a command goes on. `wait_s`: as for a build."""

    wait_s: float | None


def patience(text: str | None) -> float | None:
    """Return how many seconds to wait for a quiet machine, None to measure anyway (0s). `text`: None for a command that
    asks where it can. Raises InputError."""
    from gemmdb.tune.plan import seconds

    if text is None and can_ask():
        return ASK_S
    return seconds(WAIT if text is None else text, "--wait", least=0.0) or None


def can_ask() -> bool:
    """Whether somebody can see a question and answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def again(report: BuildReport | Remeasured, wait: str | None) -> Again | None:
    """Return how a command goes on that stopped because other programs use the machine; None if it does not. Without
    --wait it asks on a terminal, and waits if that is the answer."""
    answer = decided(report.stopped, wait) if report.stopped else Answer.STOP
    if answer is Answer.MEASURE:
        return Again(None)
    if answer is Answer.STOP:
        return None
    from gemmdb.generators.measure import backends, quiet

    note(WAITING)
    quiet.idle(backends.backend_for(report.device), DAY_S)
    return Again(ASK_S)


def measures(busy: Load, wait: str | None) -> bool:
    """Return whether to time a program while others use the machine: if that is the answer on a terminal, or after they
    have ended if that is."""
    answer = decided(busy.text, wait)
    if answer is Answer.WAIT:
        note(WAITING)
        load.wait(DAY_S)
    return answer is not Answer.STOP


def decided(busy: str, wait: str | None) -> Answer:
    """Return what to do while other programs use the machine: stop, unless somebody can be asked. With --wait nobody
    is."""
    return Answer.STOP if wait is not None or not can_ask() else ask(busy)


def ask(busy: str) -> Answer:
    """Ask what to do. `busy`: what uses the machine. The end of the input stops."""
    note(busy)
    while True:
        print(f"gemmdb: {QUESTION}", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        word = line.strip().lower()
        if not line:
            return Answer.STOP
        for answer in Answer:
            if word and answer.startswith(word):
                return answer
