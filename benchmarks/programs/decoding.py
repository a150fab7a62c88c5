"""A decode step of a transformers model with a static cache. Imports torch and transformers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import StaticCache

from benchmarks.programs.building import tokens
from benchmarks.programs.program import Built, Compile, Step


class Decode(torch.nn.Module):
    """The model with its cache. Each call decodes the same position again, so all calls give the same logits."""

    def __init__(self, model: Any, rows: int, context: int) -> None:
        super().__init__()
        self.model = model
        self.cache = StaticCache(config=model.config, max_cache_len=context)
        self.position = context - 1
        self.mask = torch.ones(rows, context, dtype=torch.int64, device=model.device)
        self.prompt = tokens(model.config.vocab_size, rows, context - 1, device=model.device)
        # Without the head: the logits of all positions would take several times the memory of the weights.
        with torch.no_grad():
            model.base_model(self.prompt, past_key_values=self.cache)

    def forward(self, ids: torch.Tensor) -> Any:
        """Logits [rows, 1, vocabulary] of `ids` [rows, 1]."""
        for layer in self.cache.layers:
            length = getattr(layer, "cumulative_length", None)
            if isinstance(length, torch.Tensor):
                length.fill_(self.position)
            if hasattr(layer, "cumulative_length_int"):
                layer.cumulative_length_int = self.position
        # Older versions of transformers are told the position by `cache_position`.
        position = torch.full((1,), self.position, device=ids.device)
        told = {"position_ids": position.expand(ids.shape), "cache_position": position}
        return self.model(ids, attention_mask=self.mask, past_key_values=self.cache, use_cache=True, **told).logits


def built(model: Any, rows: int, context: int, device: str, exact: bool = True) -> Built:
    """The program that decodes one token for each of `rows` sequences. `exact`: an fp32 copy of the model is the
    reference."""
    decode = Decode(model, rows, context)
    ids = tokens(model.config.vocab_size, rows, 1, device=device)

    def step(compile: Compile) -> Step:
        run = compile(decode)
        return lambda: run(ids)

    def reference() -> Any:
        return Decode(copy.deepcopy(model).float(), rows, context)(ids)

    return Built(step, reference if exact else None)
