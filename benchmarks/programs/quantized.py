"""Llama-shaped decoders of transformers, quantised by torchao, some with the flags of Inductor that torchao sets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.programs.decoders import LLAMA
from benchmarks.programs.hugging import text
from benchmarks.programs.program import Built, Program

NEEDS = ("transformers", "torchao")
ROWS, MANY_ROWS = (1, 4, 16), (32, 64)
"""Sequences of a decode step. On a GPU, GEMMs of int8 have at least 17 rows: default mode refuses fewer."""
HOPPER_OR_ADA = (8, 9)
"""The least compute capability with fp8 matrix units."""
TUNED = ("int8wo-decode-1", "int8dyn-decode-32", "fp8wo-decode-1", "fp8dyn-decode-1")
"""The programs with the flags of Inductor that torchao sets by itself, among them coordinate descent in all directions.
It compiles 200 to 350 block sizes of such a program one after the other, which takes a minute or more in each way. So
the other programs are quantised with `set_inductor_config=False`."""


@dataclass(frozen=True)
class Scheme:
    """How a model is quantised: torchao's config, and whether torchao sets its flags of Inductor."""

    config: Callable[..., Any]
    tuned: bool


def int8_weights(**flags: bool) -> Any:
    """int8 weights, activations in bf16."""
    from torchao.quantization import Int8WeightOnlyConfig

    return Int8WeightOnlyConfig(**flags)


def int8_both(**flags: bool) -> Any:
    """int8 weights, and activations in int8 with a scale per row."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig

    return Int8DynamicActivationInt8WeightConfig(**flags)


def fp8_weights(**flags: bool) -> Any:
    """fp8 weights, activations in bf16."""
    from torchao.quantization import Float8WeightOnlyConfig

    return Float8WeightOnlyConfig(**flags)


def fp8_both(**flags: bool) -> Any:
    """fp8 weights and activations, with a scale per row and column."""
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow

    return Float8DynamicActivationFloat8WeightConfig(granularity=PerRow(), **flags)


def _quantized(how: Scheme, size: str, device: str, wanted: Callable[[Any, str], bool] | None = None) -> Any:
    from torchao.quantization import quantize_

    model = LLAMA.made(size, device)
    quantize_(model, how.config(set_inductor_config=how.tuned), filter_fn=wanted)
    return model


def _of_a_block(module: Any, name: str) -> bool:
    """Whether a module is a linear layer that is not the one of the logits."""
    return type(module).__name__ == "Linear" and name != "lm_head"


def decode(rows: int, how: Scheme, size: str, device: str) -> Built:
    """One token for each of `rows` sequences, with a static cache."""
    from benchmarks.programs.decoding import built

    rows, context = (rows, 1024) if size == "gpu" else (min(rows, 2), 16)
    return built(_quantized(how, size, device), rows, context, device, exact=False)


def prefill(tokens: int, how: Scheme, size: str, device: str) -> Built:
    """The logits of the last of `tokens` tokens."""
    from benchmarks.programs.building import of_model

    # A prefill has one row of logits, which is too few for GEMMs of int8.
    model = _quantized(how, size, device, _of_a_block if how.config is int8_both else None)
    inputs = text(1, tokens, masked=True, use_cache=False, logits_to_keep=1)(model.config, size, device)
    return of_model(model, inputs, exact=False)


def programs() -> Iterator[Program]:
    """All programs of this module."""
    for scheme, kind, config in (
        ("int8wo", "int8", int8_weights),
        ("int8dyn", "int8", int8_both),
        ("fp8wo", "fp8", fp8_weights),
        ("fp8dyn", "fp8", fp8_both),
    ):
        counts = MANY_ROWS if scheme == "int8dyn" else ROWS
        steps = {f"decode-{rows}": functools.partial(decode, rows) for rows in counts}
        for step, make in {**steps, "prefill-512": functools.partial(prefill, 512)}.items():
            name = f"{scheme}-{step}"
            how = Scheme(config, name in TUNED)
            yield Program(
                f"torchao-{name}", kind, functools.partial(make, how), NEEDS, tuned=how.tuned, tolerance=0.05,
                arch=HOPPER_OR_ADA if kind == "fp8" else (0, 0),
                gpu_only="torchao's fp8 activations need a GPU" if scheme == "fp8dyn" else "",
            )  # fmt: skip
