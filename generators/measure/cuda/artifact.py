"""Something to compile before a candidate can run: its interface, and what building it came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol as Interface


@dataclass(frozen=True)
class Built:
    """What building an artifact came to: the reason it failed, empty when it did not, the seconds spent, and the bytes
    of shared memory that a block takes (0: not known before it runs)."""

    failure: str
    seconds: float
    shared: int = 0


class Artifact(Interface):
    """Something to compile in another process, before the process that measures loads it from disk."""

    @property
    def key(self) -> str:
        """Names the artifact: equal keys are built once."""

    @property
    def work(self) -> str:
        """Names what takes most of the time, where other artifacts need the same: while one is built, the others would
        wait for it. Empty where it is the artifact's own."""

    def build(self, capability: int) -> Built:
        """Compile for compute capability `capability` (90 for sm90) and leave the result on disk, so that building
        again is quick."""
