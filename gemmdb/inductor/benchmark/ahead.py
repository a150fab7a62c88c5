"""What trials compile is begun at the joint stage, as soon as the products of a graph are known.

Inductor's own passes run between the two stages, and its compilers wait for work then. The post-grad pass takes over
what was begun for the same code, and begins the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, Protocol

from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.lower.adapter.emission import Begun

Steer = Callable[[Any, Decision], None]
"""Carries a decision out on the node of its product: leaves there what the lowering needs, or rewrites the graph."""


class Beginning(Protocol):
    """A trial: `key` says what it compiles, and `begun` is the code that is being compiled."""

    begun: tuple[Begun, ...]

    @property
    def key(self) -> object:
        """What trials of the same code have in common."""

    def begin(self, steer: Steer) -> None:
        """Generate the code, and begin to compile it."""


def ready(trial: Beginning, seconds: float) -> bool:
    """Whether the kernels of a trial are compiled. Waits for them for `seconds` at most."""
    until = monotonic() + seconds
    return all(one.ready(until - monotonic()) for one in trial.begun)


class Ahead:
    """The code of one compile that nothing has waited for yet. Both passes of the compile share it."""

    def __init__(self) -> None:
        self._begun: dict[object, tuple[Begun, ...]] = {}

    def begin(self, trial: Beginning, steer: Steer) -> None:
        """Begin a trial, unless its code was begun before. Raises what `trial.begin` raises."""
        begun = self._begun.pop(trial.key, None)
        if begun is None:
            trial.begin(steer)
        else:
            trial.begun = begun

    def keep(self, trials: Iterable[Beginning]) -> None:
        """Keep the code of trials that begin again in a later pass."""
        self._begun.update((trial.key, trial.begun) for trial in trials if trial.begun)
