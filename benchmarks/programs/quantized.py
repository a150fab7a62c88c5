"""Llama-shaped decoders of transformers, quantised by torchao, with the flags of Inductor that torchao sets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.programs.decoders import LLAMA
from benchmarks.programs.hugging import text
from benchmarks.programs.program import Built, Program

NEEDS = ("transformers", "torchao")
ROWS, MANY_ROWS = (1, 4, 16), (32, 64)
"""Sequences of a decode step. On a GPU, products of int8 have at least 17 rows: default mode refuses fewer."""
HOPPER_OR_ADA = (8, 9)
"""The least compute capability with fp8 matrix units."""


def int8_weights() -> Any:
    """int8 weights, activations in bf16."""
    from torchao.quantization import Int8WeightOnlyConfig

    return Int8WeightOnlyConfig()


def int8_both() -> Any:
    """int8 weights, and activations in int8 with a scale per row."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig

    return Int8DynamicActivationInt8WeightConfig()


def fp8_weights() -> Any:
    """fp8 weights, activations in bf16."""
    from torchao.quantization import Float8WeightOnlyConfig

    return Float8WeightOnlyConfig()


def fp8_both() -> Any:
    """fp8 weights and activations, with a scale per row and column."""
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow

    return Float8DynamicActivationFloat8WeightConfig(granularity=PerRow())


def _quantized(
    config: Callable[[], Any], size: str, device: str, wanted: Callable[[Any, str], bool] | None = None
) -> Any:
    from torchao.quantization import quantize_

    model = LLAMA.made(size, device)
    quantize_(model, config(), filter_fn=wanted)
    return model


def _of_a_block(module: Any, name: str) -> bool:
    """Whether a module is a linear layer that is not the one of the logits."""
    return type(module).__name__ == "Linear" and name != "lm_head"


def decode(config: Callable[[], Any], rows: int, size: str, device: str) -> Built:
    """One token for each of `rows` sequences, with a static cache."""
    from benchmarks.programs.decoding import built

    rows, context = (rows, 1024) if size == "gpu" else (min(rows, 2), 16)
    return built(_quantized(config, size, device), rows, context, device, exact=False)


def prefill(config: Callable[[], Any], tokens: int, size: str, device: str) -> Built:
    """The logits of the last of `tokens` tokens."""
    from benchmarks.programs.building import of_model

    # A prefill has one row of logits, which is too few for products of int8.
    model = _quantized(config, size, device, _of_a_block if config is int8_both else None)
    inputs = text(1, tokens, masked=True, use_cache=False, logits_to_keep=1)(model.config, size, device)
    return of_model(model, inputs, exact=False)


def programs() -> Iterator[Program]:
    """All programs of this module."""
    for name, kind, config in (
        ("int8wo", "int8", int8_weights),
        ("int8dyn", "int8", int8_both),
        ("fp8wo", "fp8", fp8_weights),
        ("fp8dyn", "fp8", fp8_both),
    ):
        counts = MANY_ROWS if name == "int8dyn" else ROWS
        steps = {f"decode-{rows}": functools.partial(decode, config, rows) for rows in counts}
        for step, make in {**steps, "prefill-512": functools.partial(prefill, config, 512)}.items():
            yield Program(
                f"torchao-{name}-{step}", kind, make, NEEDS, tuned=True, tolerance=0.05,
                arch=HOPPER_OR_ADA if kind == "fp8" else (0, 0),
                gpu_only="torchao's fp8 activations need a GPU" if name == "fp8dyn" else "",
            )  # fmt: skip
