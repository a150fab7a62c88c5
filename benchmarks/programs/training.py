"""Training steps: forward, backward and optimizer, under autocast to bf16, one with activation checkpointing."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from benchmarks.programs.program import Built, Program

TOLERANCE = 0.05


def blocks(checkpointed: bool, size: str, device: str) -> Built:
    """A transformer of torch.nn, checkpointed block by block or not."""
    from benchmarks.programs import training_step

    return training_step.of_blocks(checkpointed, size, device)


def of_transformers(name: str, size: str, device: str) -> Built:
    """A model of transformers."""
    from benchmarks.programs import training_step

    return training_step.of_transformers(name, size, device)


def programs() -> Iterator[Program]:
    """All programs of this module."""
    for name, checkpointed in (("train-blocks", False), ("train-blocks-checkpointed", True)):
        yield Program(name, "training", functools.partial(blocks, checkpointed), grad=True, tolerance=TOLERANCE)
    for name in ("llama-checkpointed", "bert", "vit", "gpt2-2x100", "gemma2-1x64"):
        make = functools.partial(of_transformers, name)
        yield Program(f"train-{name}", "training", make, ("transformers",), grad=True, tolerance=TOLERANCE)
