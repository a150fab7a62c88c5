"""Programs of transformers' models: forward passes of encoders, vision, audio and mixtures of experts, and decoding
with a static cache. Imports torch and transformers when a program is made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.programs.program import Built

Inputs = Callable[[Any, str, str], dict[str, Any]]
"""The keyword arguments of a model, from its config, the size and the device."""


@dataclass(frozen=True)
class Architecture:
    """A model of transformers: the names of its config and of its class, and the sizes of both versions. `attention`:
    transformers' name of an implementation."""

    config: str
    model: str
    gpu: Mapping[str, Any]
    tiny: Mapping[str, Any]
    attention: str = "sdpa"
    both: Mapping[str, Any] = field(default_factory=dict)

    def sizes(self, size: str) -> dict[str, Any]:
        """The arguments of the config."""
        return {**self.both, **(self.gpu if size == "gpu" else self.tiny)}

    def made(self, size: str, device: str) -> Any:
        """The model with random bf16 weights, for inference."""
        import torch
        import transformers

        from benchmarks.programs.building import making, stirred

        config = getattr(transformers, self.config)(**self.sizes(size))
        with making(device):
            model = getattr(transformers, self.model)._from_config(
                config, attn_implementation=self.attention, dtype=torch.bfloat16
            )
        return stirred(model.to(device, torch.bfloat16).eval())


def forward(architecture: Architecture, inputs: Inputs, size: str, device: str) -> Built:
    """One forward pass."""
    from benchmarks.programs.building import of_model

    model = architecture.made(size, device)
    return of_model(model, inputs(model.config, size, device))


def text(rows: int, length: int, masked: bool = False, **more: Any) -> Inputs:
    """Sequences of tokens; the tiny version has two of at most 16. `masked`: with the mask that a tokenizer returns."""

    def inputs(config: Any, size: str, device: str) -> dict[str, Any]:
        from benchmarks.programs.building import tokens

        shape = (rows, length) if size == "gpu" else (min(rows, 2), min(length, 16))
        ids = tokens(config.vocab_size, *shape, device=device)
        return {"input_ids": ids, **({"attention_mask": ids.new_ones(shape)} if masked else {}), **more}

    return inputs


def decode(architecture: Architecture, rows: int, context: int, size: str, device: str) -> Built:
    """One token for each of `rows` sequences, with `context` tokens in a static cache."""
    from benchmarks.programs.decoding import built

    model = architecture.made(size, device)
    rows, context = (rows, context) if size == "gpu" else (min(rows, 2), 16)
    return built(model, rows, context, device)


forwarding = functools.partial(functools.partial, forward)
"""`make` of a forward pass, from an Architecture and Inputs."""
decoding = functools.partial(functools.partial, decode)
"""`make` of a decode step, from an Architecture, rows and context."""
