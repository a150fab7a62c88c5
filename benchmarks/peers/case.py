"""What a rival gets, and what it gives back. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from benchmarks.peers.ops import padded
from benchmarks.peers.packing import Weight, weight_of
from gemmdb.generators.measure.correctness import Reference, reference
from gemmdb.generators.measure.cuda.bench import Bench
from gemmdb.generators.measure.operands import Operands
from gemmdb.key.problem import Problem


class Unfit(Exception):
    """A rival has no kernel for a problem, with the reason."""


@dataclass(frozen=True)
class Case:
    """A problem, and equal operands at several addresses. The copies of a grouped GEMM have several splits in turn.
    `bench`: what the copies belong to; it may have more rows, as `ops.padded` says."""

    problem: Problem
    sets: Sequence[Operands]
    bench: Bench | None = None

    @classmethod
    def of(cls, problem: Problem) -> Case:
        """A problem's case on the GPU, with as many copies as `Bench` makes."""
        bench = Bench.of(padded(problem))
        return cls(problem, [first_rows(Operands.of(copy), problem.m) for copy in bench.copies], bench)

    @property
    def program(self) -> tuple[Problem, list[Operands]]:
        """The problem that a program gives to torch, with its copies: the same, or with more rows."""
        if self.bench is None:
            return self.problem, list(self.sets)
        return self.bench.problem, [Operands.of(copy) for copy in self.bench.copies]

    @property
    def expected(self) -> list[Reference]:
        """The exact result, for a grouped GEMM one per split."""
        if self.bench is not None and self.bench.problem == self.problem:
            return self.bench.expected
        return [reference(self.problem, self.sets[0])]

    def weights(self) -> list[Weight]:
        """The integer weight of each copy."""
        assert all(made.scale is not None for made in self.sets)
        return [weight_of(self.problem, made.b, made.scale) for made in self.sets if made.scale is not None]

    def multiple(self, n: int = 1, k: int = 1) -> None:
        """Raise Unfit unless the sizes are multiples."""
        for name, step in (("n", n), ("k", k)):
            if getattr(self.problem, name) % step:
                raise Unfit(f"{name} is no multiple of {step}")


def first_rows(made: Operands, m: int) -> Operands:
    """The operands of the first `m` rows."""
    scale = made.scale_a if made.scale_a is None or made.scale_a.dim() < 2 else made.scale_a[:m]
    return made if len(made.a) == m else replace(made, a=made.a[:m], scale_a=scale)


def whole(result: torch.Tensor, _: int) -> torch.Tensor:
    """The result itself."""
    return result


@dataclass(frozen=True)
class Made:
    """A rival that is ready. `call`: runs it on the copy with that number. `product`: the product [m, n] in the result
    of such a call."""

    call: Callable[[int], torch.Tensor]
    product: Callable[[torch.Tensor, int], torch.Tensor] = whole


def each(calls: Sequence[Callable[[], torch.Tensor]]) -> Made:
    """A rival with one call per copy, which gives the product."""
    return Made(lambda index: calls[index]())
