"""Something to compile before a candidate can run: its interface, and the result of building it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol as Interface


@dataclass(frozen=True)
class Built:
    """The result of building an artifact: the reason it failed (empty if it succeeded), the seconds spent, and the
    bytes of shared memory of a block (0: not known before it runs)."""

    failure: str
    seconds: float
    shared: int = 0


class Artifact(Interface):
    """Something to compile in another process. The process that measures then loads it from disk."""

    @property
    def key(self) -> str:
        """The name of the artifact: equal keys are built once."""

    @property
    def work(self) -> str:
        """The name of the slow part of the build, if other artifacts share it: while one is built, the others would
        wait for it. Empty if no other artifact shares it."""

    def build(self, capability: int) -> Built:
        """Compile for compute capability `capability` (90 for sm90) and leave the result on disk, so that building
        again is quick."""
