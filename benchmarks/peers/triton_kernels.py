"""Rivals in Triton: GemLite, and Inductor's own templates by max-autotune. Imports torch."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import torch

from benchmarks.peers.case import Case, Made
from benchmarks.peers.packing import Weight
from gemmdb.generators.measure.program import Product

ZERO = 8
"""The integer of an int4 weight that is zero."""
WARMUP_MS, TUNING_MS = 5, 20
"""How long GemLite tries each of its configs, of which it has about 20; Triton's own choice is 25 and 100 ms."""


def gemlite(case: Case) -> Made:
    """GemLite's layers with its own packing. It tunes on the spot: no config of its authors names this GPU. Blocks that
    share a result add to it in bf16."""
    return _gemlite(case, native=True)


def gemlite_exact(case: Case) -> Made:
    """GemLite with sums in fp32, where its kernels have the choice: they are cast by one more kernel."""
    return _gemlite(case, native=False)


def _gemlite(case: Case, native: bool) -> Made:
    core = importlib.import_module("gemlite.core")
    case.multiple(k=128)
    timer = partial(importlib.import_module("triton.testing").do_bench, warmup=WARMUP_MS, rep=TUNING_MS)
    for family in core.GEMLITE_TRITON_KERNELS:
        for kernel in family.kernel:
            kernel.do_bench = timer
    module = importlib.import_module("gemlite")
    layers = [_layer(module, weight) for weight in case.weights()]

    def call(index: int) -> torch.Tensor:
        core.set_native_atomic_bfp16(native)
        result: torch.Tensor = layers[index](case.sets[index].a)
        return result

    return Made(call)


def _layer(gemlite: Any, weight: Weight) -> Any:
    """A layer of GemLite, by its helpers for weights that are integers already."""
    device, dtype = weight.codes.device, weight.scale.dtype
    if weight.bits == 8:
        signed = (weight.codes.to(torch.int16) - 128).to(torch.int8)
        return gemlite.helper.A16W8_INT8(device=device, dtype=dtype).from_weights(signed, scales=weight.scale)
    helper = gemlite.helper.A16Wn(device=device, dtype=dtype)
    zeros = torch.full_like(weight.scale, ZERO)
    group = weight.codes.shape[1] // weight.scale.shape[1]
    return helper.from_weights(weight.codes, weight.scale, zeros, weight.bits, group)


def autotune(case: Case) -> Made:
    """The problem's program as max-autotune compiles it: for groups, Triton's persistent kernel beside ATen's."""
    torch._dynamo.reset()
    problem, sets = case.program
    modules = [Product(problem, made) for made in sets]
    run = torch.compile(modules[0], mode="max-autotune-no-cudagraphs")
    calls = [partial(run, *module.inputs) for module in modules]
    return Made(lambda index: calls[index](), lambda result, _: result[: case.problem.m])
