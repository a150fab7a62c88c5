"""A rival that compiles CUDA kernels on the spot: humming. Imports torch."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import torch

from benchmarks.peers.case import Case, Made, each
from benchmarks.peers.packing import Weight, words
from gemmdb.generators.measure.operands import Operands


def humming(case: Case) -> Made:
    """humming's layer with the weight in its own layout and its heuristic's config. The layer would compile a kernel
    for each range of rows; only the one for these rows is."""
    layer_of = importlib.import_module("humming.layer").HummingLayer
    pairs = zip(case.sets, case.weights(), strict=True)
    return each([_humming(layer_of, case, made, weight) for made, weight in pairs])


def _humming(layer_of: Any, case: Case, made: Operands, weight: Weight) -> partial[torch.Tensor]:
    problem = case.problem
    config: dict[str, Any] = {"dtype": f"uint{weight.bits}"}
    if weight.scale.shape[1] > 1:
        config["group_size"] = problem.k // weight.scale.shape[1]
    layer = layer_of(problem.n, problem.k, config, torch_dtype=made.a.dtype).to(made.a.device)
    layer.load_from_tensors({"weight": words(weight.codes, weight.bits), "weight_scale": weight.scale})
    layer.transform()
    ranges = importlib.import_module("humming.tune").get_heuristics_config(layer.humming_config)
    # Without its range: given several configs, humming reads the metadata of the one for a single row.
    return partial(layer, made.a, tuning_config=next(one for low, high, one in ranges if low < problem.m <= high))
