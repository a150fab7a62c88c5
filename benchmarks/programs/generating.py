"""transformers' `generate` with a static cache, which compiles the decode step by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.programs.decoders import LLAMA, NEEDS, named
from benchmarks.programs.hugging import text
from benchmarks.programs.program import Built, Compile, Program, Step

LENGTH, NEW = 128, 8
"""Tokens of the prompt, and tokens that follow."""


def make(size: str, device: str) -> Built:
    """A greedy continuation. The outputs are the logits of the first compiled step: later ones depend on which of two
    likely tokens came before."""
    from transformers import CompileConfig

    model = named(LLAMA, vocab_size=32000).made(size, device)
    prompt = text(1, LENGTH, masked=True)(model.config, size, device)
    model.generation_config.pad_token_id = 0

    def step(compile: Compile) -> Step:
        how: dict[str, Any] = {"disable_compile": True}
        if options := getattr(compile, "keywords", None):  # A partial of torch.compile.
            config = CompileConfig(**options)
            config._compile_all_devices = True  # By itself it compiles on GPUs only.
            how = {"compile_config": config}

        def run() -> Any:
            found = model.generate(
                **prompt, max_new_tokens=NEW, do_sample=False, cache_implementation="static", output_logits=True,
                return_dict_in_generate=True, **how,
            )  # fmt: skip
            return found.logits[1].clone()

        return run

    return Built(step)


def programs() -> Iterator[Program]:
    """All programs of this module."""
    yield Program(
        "generate-llama", "bf16", make, NEEDS, {"mode": "reduce-overhead"},
        uncaptured="generate chooses each token on the host, and makes CUDA graphs of its own",
    )  # fmt: skip
