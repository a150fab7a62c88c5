"""Rivals in Triton: GemLite, and Inductor's own templates by max-autotune. Imports torch."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import torch

from benchmarks.peers.case import Case, Made, each
from benchmarks.peers.packing import Weight
from gemmdb.generators.measure.program import Product

ZERO = 8
"""The integer of an int4 weight that is zero."""


def gemlite(case: Case) -> Made:
    """GemLite's layers with its own packing. It tunes on the spot: no config of its authors names this GPU."""
    gemlite = importlib.import_module("gemlite")
    case.multiple(k=128)
    layers = [_layer(gemlite, weight) for weight in case.weights()]
    return each([partial(layer, made.a) for layer, made in zip(layers, case.sets, strict=True)])


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
    modules = [Product(case.problem, made) for made in case.sets]
    run = torch.compile(modules[0], mode="max-autotune-no-cudagraphs")
    return each([partial(run, *module.inputs) for module in modules])
