"""vLLM's kernels with a config of our choice, by vLLM's own functions: what is timed is what it runs. Imports vLLM."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Any

import torch

from gemmdb.errors import InputError
from gemmdb.generators.vllm import operands
from gemmdb.generators.vllm.layers import BLOCK, Experts, Layer, Linear
from gemmdb.generators.vllm_files import Tile
from gemmdb.key.ops import SCALE_BLOCK
from gemmdb.rejected import Rejected

EXPERTS = "vllm.model_executor.layers.fused_moe"
FP8 = "vllm.model_executor.layers.quantization.utils.fp8_utils"
LAUNCH = {"num_warps": 4, "num_stages": 3, "GROUP_SIZE_M": 1}
"""Triton's defaults, for a config of vLLM that leaves them out."""
LINEAR_DEFAULT = Tile(64, SCALE_BLOCK, SCALE_BLOCK, 32, 4, 2)
"""What vLLM uses for a linear without a file."""
Call = Callable[[int], torch.Tensor]


class Kernel:
    """A layer with `m` rows. `current`: vLLM's present config. `exact`: the result for the first rows of copy 0."""

    current: Tile
    exact: torch.Tensor

    def call(self, tile: Tile) -> Call:
        """Return a function that runs the layer with a config on one of `operands.COPIES` inputs."""
        raise NotImplementedError


def kernel(layer: Layer, weights: list[operands.Weight], m: int, device: torch.device) -> Kernel:
    """Return the kernel of a layer for `m` rows. Raises InputError if vLLM is missing or does not fit."""
    if isinstance(layer, Experts):
        return _Experts(layer, weights, m, device)
    return _Linear(layer, weights, m, device)


class _Experts(Kernel):
    def __init__(self, layer: Experts, weights: list[operands.Weight], m: int, device: torch.device) -> None:
        self._inputs = operands.activations(m, layer.hidden, device)
        self._routings = operands.routings(layer, m, device)
        self._weights, (first, second) = weights, weights
        self._module, self._quantized = _module(EXPERTS), {}
        functions = _module(f"{EXPERTS}.fused_moe")
        self._run = functions.fused_experts
        if layer.fp8:
            make = _module(f"{EXPERTS}.config").fp8_w8a8_moe_quant_config
            scales = {"w1_scale": first.scale, "w2_scale": second.scale}
            self._quantized = {"quant_config": make(**scales, block_shape=list(BLOCK))}
        words = "fp8_w8a8" if layer.fp8 else None
        sizes = (first.values.shape, second.values.shape)
        block = list(BLOCK) if layer.fp8 else None
        self.current = _tile(functions.try_get_optimal_moe_config(*sizes, layer.top_k, words, m, block_shape=block))
        self.exact = operands.exact_experts(self._inputs[0], first, second, self._routings[0])

    def call(self, tile: Tile) -> Call:
        first, second = (one.values for one in self._weights)

        def run(index: int) -> torch.Tensor:
            shares, chosen = self._routings[index]
            with self._module.override_config(tile.values):
                found: torch.Tensor = self._run(self._inputs[index], first, second, shares, chosen, **self._quantized)
            return found

        return run


class _Linear(Kernel):
    def __init__(self, layer: Linear, weights: list[operands.Weight], m: int, device: torch.device) -> None:
        self._module = _module(FP8)
        self._m, (self._weight,) = m, weights
        inputs = operands.activations(m, layer.k, device)
        self._inputs = [_quantized(one) for one in inputs]
        known = self._module.get_w8a8_block_fp8_configs(layer.n, layer.k, *BLOCK)
        nearest = known[min(known, key=lambda one: abs(one - m))] if known else LINEAR_DEFAULT.values
        self.current = _tile(nearest)
        self.exact = operands.exact_linear(*self._inputs[0], self._weight)

    def call(self, tile: Tile) -> Call:
        weight, known = self._weight, {self._m: tile.values}

        def run(index: int) -> torch.Tensor:
            x, scale = self._inputs[index]
            module, lookup = self._module, self._module.get_w8a8_block_fp8_configs
            module.get_w8a8_block_fp8_configs = lambda *_: known
            try:
                found: torch.Tensor = module.w8a8_triton_block_scaled_mm(
                    x, weight.values, scale, weight.scale, list(BLOCK), torch.bfloat16
                )
            finally:
                module.get_w8a8_block_fp8_configs = lookup
            return found

        return run


def _quantized(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return fp8 values [m, K] and fp32 scales [m, K / 128]."""
    blocks = x.float().view(len(x), -1, SCALE_BLOCK)
    scale = blocks.abs().amax(-1).clamp_(min=1e-10) / torch.finfo(torch.float8_e4m3fn).max
    return (blocks / scale[..., None]).to(torch.float8_e4m3fn).view_as(x), scale


def _tile(config: Mapping[str, Any]) -> Tile:
    tile = Tile.of({**LAUNCH, **config})
    if isinstance(tile, Rejected):
        raise InputError(f"vLLM's present config is none that gemmdb can write: {tile.reason}")
    return tile


def versions(device: torch.device) -> dict[str, str]:
    """Return the versions and the GPU that a time depends on. Raises InputError without vLLM."""
    _module("vllm")
    found = {name: importlib.metadata.version(name) for name in ("vllm", "torch", "triton", "gemmdb")}
    return found | {"cuda": str(torch.version.cuda), "device": torch.cuda.get_device_name(device)}


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"this needs vLLM, which cannot be imported here ({error}); run it in the environment of your server"
        ) from error
