"""The record of one program, and what its builder returns. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

SIZES = ("gpu", "tiny")
"""`gpu`: the widths of a published model with few layers. `tiny`: the same code on a CPU, within seconds."""
KINDS = ("bf16", "int8", "fp8", "training")
"""The classes that a report takes means of."""

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
"""torch.compile with the arguments of a way, or a function that returns its argument."""
Step = Callable[[], Any]
"""Runs the program once; returns tensors or containers of them."""


def nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Built:
    """A program in memory. `step`: given what compiles, the step of the program. Calling a step again must give the
    same outputs; if it changes what it reads, `reset` undoes that. `reference`: the same outputs from fp32, without
    compiling; None where there is no such version, so that the eager step is the reference."""

    step: Callable[[Compile], Step]
    reference: Step | None = None
    reset: Callable[[], None] = nothing


@dataclass(frozen=True)
class Program:
    """One program. `kind`: one of KINDS. `make`: builds it from a size and the name of a device. `needs`: packages.
    `options`: its own arguments of torch.compile. `uncaptured`: why a CUDA graph cannot hold its step. `tuned`: its own
    flags make Inductor measure while it compiles. `grad`: it needs gradients. `gpu_only`: why it cannot run on a CPU.
    `arch`: the least compute capability of a GPU. `tolerance`: the error that a way may have however small default
    mode's is."""

    name: str
    kind: str
    make: Callable[[str, str], Built]
    needs: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    uncaptured: str = ""
    tuned: bool = False
    grad: bool = False
    gpu_only: str = ""
    arch: tuple[int, int] = (0, 0)
    tolerance: float = 0.02
    collection: str = ""
