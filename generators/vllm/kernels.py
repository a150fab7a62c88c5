"""vLLM's kernels with a config of our choice, by vLLM's own functions: what is timed is what it runs. Imports vLLM."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gemmdb import __version__
from gemmdb.errors import GemmdbError, InputError
from gemmdb.generators.vllm import operands
from gemmdb.generators.vllm.layers import BLOCK, Experts, Layer, Linear
from gemmdb.generators.vllm_files import Tile
from gemmdb.key.ops import SCALE_BLOCK
from gemmdb.rejected import Rejected

EXPERTS = "vllm.model_executor.layers.fused_moe"
FP8 = "vllm.model_executor.layers.quantization.utils.fp8_utils"
FOLDER = "VLLM_TUNED_CONFIG_FOLDER"
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_LOGGING_STREAM": "ext://sys.stderr"}
"""vLLM logs to stdout otherwise, which holds this command's result."""
LAUNCH = {"num_warps": 4, "num_stages": 3, "GROUP_SIZE_M": 1}
"""Triton's defaults, for a config of vLLM that leaves them out."""
LINEAR_DEFAULT = Tile(64, SCALE_BLOCK, SCALE_BLOCK, 32, 4, 2)
"""What vLLM uses for a linear without a file."""
MAX_COMPILERS = 16
Call = Callable[[int], torch.Tensor]
"""Runs a layer on one of `operands.COPIES` inputs, by its index."""


@dataclass(frozen=True)
class Kernel:
    """vLLM's kernel of a layer for a number of rows. `current`: the config that vLLM has for it now. `call`: returns
    the call with another one. `exact`: the result for the rows `sample` of copy 0, fp32."""

    current: Tile
    call: Callable[[Tile], Call]
    sample: torch.Tensor
    exact: torch.Tensor


def kernel(layer: Layer, weights: list[operands.Weight], m: int, device: torch.device) -> Kernel:
    """Return the kernel of a layer for `m` rows. Raises InputError if vLLM is missing or does not fit."""
    if isinstance(layer, Experts):
        return _experts(layer, weights, m, device)
    return _linear(layer, weights[0], m, device)


def _experts(layer: Experts, weights: list[operands.Weight], m: int, device: torch.device) -> Kernel:
    module, (first, second) = _module(f"{EXPERTS}.fused_moe"), weights
    inputs, routed = operands.activations(m, layer.hidden, device), operands.routings(layer, m, device)
    more = {}
    if layer.fp8:
        make = _function(_module(f"{EXPERTS}.config"), "fp8_w8a8_moe_quant_config")
        more = {"quant_config": make(w1_scale=first.scale, w2_scale=second.scale, block_shape=list(BLOCK))}
    fused = _function(module, "fused_experts")

    def run(index: int) -> torch.Tensor:
        found: torch.Tensor = fused(inputs[index], first.values, second.values, *routed[index], **more)
        return found

    sample = operands.sample(m, device)
    shares, chosen = routed[0]
    exact = operands.exact_experts(inputs[0][sample], first, second, (shares[sample], chosen[sample]))
    return Kernel(present(layer, m), _calls(run, module, "get_moe_configs", m), sample, exact)


def _linear(layer: Linear, weight: operands.Weight, m: int, device: torch.device) -> Kernel:
    module = _module(FP8)
    inputs = [operands.quantized(one) for one in operands.activations(m, layer.k, device)]
    multiply = _function(module, "w8a8_triton_block_scaled_mm")

    def run(index: int) -> torch.Tensor:
        x, scale = inputs[index]
        found: torch.Tensor = multiply(x, weight.values, scale, weight.scale, list(BLOCK), torch.bfloat16)
        return found

    sample = operands.sample(m, device)
    x, scale = inputs[0]
    exact = operands.exact_linear(x[sample], scale[sample], weight)
    return Kernel(present(layer, m), _calls(run, module, "get_w8a8_block_fp8_configs", m), sample, exact)


def _calls(run: Call, module: Any, loader: str, m: int) -> Callable[[Tile], Call]:
    """Return a function that makes a config's call: vLLM's loader returns nothing else while it runs."""

    def call(tile: Tile) -> Call:
        def served(index: int) -> torch.Tensor:
            before = _function(module, loader)
            setattr(module, loader, lambda *_, **__: {m: tile.values})
            try:
                return run(index)
            finally:
                setattr(module, loader, before)

        return served

    return call


def present(layer: Layer, m: int) -> Tile:
    """Return the config that vLLM has now for `m` rows of a layer: from its files, else its default. Raises InputError
    without vLLM, and for a config that no file can hold."""
    if isinstance(layer, Linear):
        known = _function(_module(FP8), "get_w8a8_block_fp8_configs")(layer.n, layer.k, *BLOCK)
        return _tile(known[min(known, key=lambda one: abs(one - m))] if known else LINEAR_DEFAULT.values)
    words, block = ("fp8_w8a8", list(BLOCK)) if layer.fp8 else (None, None)
    choose = _function(_module(f"{EXPERTS}.fused_moe"), "try_get_optimal_moe_config")
    return _tile(choose(*layer.weights, layer.top_k, words, m, block_shape=block))


def default(layer: Experts, m: int) -> Tile:
    """Return the config that vLLM has for `m` tokens without a file."""
    function = _function(_module(f"{EXPERTS}.fused_moe"), "get_default_config")
    words, block = ("fp8_w8a8", list(BLOCK)) if layer.fp8 else (None, None)
    return _tile(function(m, layer.experts, layer.intermediate, layer.hidden, layer.top_k, words, block))


def _tile(config: Mapping[str, Any]) -> Tile:
    tile = Tile.of({**LAUNCH, **config})
    if isinstance(tile, Rejected):
        raise InputError(f"vLLM's present config is none that gemmdb can write: {tile.reason}")
    return tile


def check_readable(layer: Layer, folder: Path, tiles: Mapping[int, Tile]) -> None:
    """Raise GemmdbError unless vLLM's loader finds these configs in a folder. It reads only those of experts from a
    folder of the user's."""
    if isinstance(layer, Linear):
        return
    load, before = _function(_module(f"{EXPERTS}.fused_moe"), "get_moe_configs"), os.environ.get(FOLDER)
    block = BLOCK if layer.fp8 else (None, None)
    os.environ[FOLDER] = str(folder)
    load.cache_clear()
    try:
        found = load(layer.experts, layer.intermediate, "fp8_w8a8" if layer.fp8 else None, *block)
    finally:
        os.environ.pop(FOLDER) if before is None else os.environ.update({FOLDER: before})
        load.cache_clear()
    if found != {m: tile.values for m, tile in tiles.items()}:
        raise GemmdbError(f"vLLM's loader does not find the configs that were written into {folder}")


def compile_ahead(calls: Iterable[Call]) -> None:
    """Compile the Triton kernels of calls in parallel, without running them. One that fails to compile does so again
    when it is called. Triton before 3.5 cannot do this: it compiles at each first call."""
    triton = importlib.import_module("triton")
    if not hasattr(triton, "AsyncCompileMode"):
        return
    workers = min(MAX_COMPILERS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(workers) as pool, triton.AsyncCompileMode(pool, ignore_errors=True), _unlaunched(triton):
        for call in calls:
            with suppress(Exception):
                call(0)


@contextmanager
def _unlaunched(triton: Any) -> Iterator[None]:
    """Let Triton compile kernels where it would launch them."""
    kind = triton.JITFunction
    run = kind.run
    kind.run = lambda self, *given, **named: run(self, *given, **{**named, "warmup": True})
    try:
        yield
    finally:
        kind.run = run


def versions(layer: Layer, device: torch.device) -> dict[str, str]:
    """Import what a layer needs of vLLM, which takes 10 s or more. Return the versions and the GPU that a time depends
    on. Raises InputError without vLLM."""
    _module(f"{EXPERTS}.fused_moe" if isinstance(layer, Experts) else FP8)
    found = {name: importlib.metadata.version(name) for name in ("vllm", "torch", "triton")} | {"gemmdb": __version__}
    return found | {"cuda": str(torch.version.cuda), "device": torch.cuda.get_device_name(device)}


def _module(name: str) -> Any:
    for variable, value in QUIET.items():
        os.environ.setdefault(variable, value)
    try:
        return importlib.import_module(name)
    except Exception as error:  # Its parts fail in many ways where they do not fit the machine.
        what = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise InputError(
            f"this command needs vLLM, which cannot be imported here ({what}); run it in your server's environment, or"
            " pip install vllm"
        ) from error


def _function(module: Any, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError as error:
        version = importlib.metadata.version("vllm")
        raise InputError(f"vLLM {version} has no {name}, which gemmdb needs; vLLM 0.26 has") from error
