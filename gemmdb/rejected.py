"""Rejected: why something is not matched, built, served or benchmarked. The one type for "no, because"."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rejected:
    """A refusal with its reason, one phrase that a user can read.

    A function that only checks is named `rejection` and returns `Rejected | None`; None means that nothing is wrong. A
    function with a result returns `T | Rejected`.
    """

    reason: str

    def __str__(self) -> str:
        return self.reason
