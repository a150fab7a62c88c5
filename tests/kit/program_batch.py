"""Many small programs in one graph: tracing, Inductor and the C++ compiler take their time once for all of them.

This module imports torch: only tests that need torch import it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from kit import inductor as helpers


class ProgramBatch(torch.nn.Module):  # type: ignore[misc]  # of torch, whose type is skipped
    """The programs, each of which has its own tuple of inputs."""

    def __init__(self, programs: Sequence[Callable[..., Any]]) -> None:
        super().__init__()
        self.programs = programs
        self.models = torch.nn.ModuleList([one for one in programs if isinstance(one, torch.nn.Module)])

    def forward(self, *inputs: tuple[Any, ...]) -> list[Any]:
        return [program(*given) for program, given in zip(self.programs, inputs, strict=True)]


def compiled(programs: Sequence[Callable[..., Any]], inputs: Sequence[tuple[Any, ...]]) -> list[Any]:
    """What each of the programs returns for its inputs, all compiled as one. They have to be what the programs return
    that are not compiled."""
    model = ProgramBatch(programs).eval()
    found = helpers.compiled(model, *inputs)
    for one, wanted in zip(found, model(*inputs), strict=True):
        for part, other in zip(_parts(one), _parts(wanted), strict=True):
            helpers.close(part, other)
    return list(found)


def _parts(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def by_rows(stats: Mapping[str, Any] | None = None) -> dict[int, tuple[str, Any]]:
    """The problem and the config of each GEMM, by its M, in which the programs have to differ."""
    found = {}
    for text, config in zip(helpers.problems(stats), helpers.lowered(stats), strict=True):
        (m,) = (int(word[2:]) for word in text.split() if word.startswith("m="))
        assert m not in found, f"{m} rows twice: {text}"
        found[m] = text, config
    return found
