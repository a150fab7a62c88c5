"""Problems whose rows tell about a GEMM with an epilogue that was not measured, and what its epilogue costs more.

Rows of the same GEMM without its bias, with another epilogue, or with none, tell which kernels multiply fastest. They
do not tell what this epilogue costs inside a kernel. What it costs beyond the one that was measured is charged:
exponentials, which default mode hides behind the memory's time, and a transposed store.
"""

from __future__ import annotations

from dataclasses import replace

from gemmdb.cost.roofline import extra_us
from gemmdb.hit import Hit
from gemmdb.kernels.config import ATEN
from gemmdb.key.epilogue import LIGHT
from gemmdb.key.problem import Problem
from gemmdb.lookup.ask import Ask

BIAS = 0.14
"""The share of a kernel's time that a bias is charged on a GPU, and that of a wider result. Of 169 configs that beat
ATen without a bias on an H200, one in twenty lost more of that by a bias, and half of them 1.6% (`python -m
benchmarks.h200 biases`)."""


def stand_ins(problem: Problem, kind: str) -> tuple[Problem, ...]:
    """The problems whose rows tell about the kernel of a problem with an epilogue, the most telling first: on a GPU
    without the bias, with the light epilogue, then without any. If the GEMM's result is stored anyway, fusing saves
    little, and the light epilogue does not tell. Empty for a problem without an epilogue. `kind`: that of the device.

    On a GPU a scaled integer GEMM that leaves fp32 to what follows has the rows of one that stores bf16: where Inductor
    fuses what follows, that is stored."""
    own = problem.epilogue
    if own is None:
        wide = problem.spec.integer and problem.fusion == "scale" and problem.out == "fp32"
        return (replace(problem, out="bf16"),) if wide and kind == "cuda" else ()
    vector = problem.spec.unbiased and problem.scalars == "unit" and problem.bias and problem.bias.kind == "1d"
    found = [replace(problem, op=problem.spec.unbiased, bias=None)] if kind == "cuda" and vector else []
    if own != LIGHT and not own.kept:
        found.append(replace(problem, fusion=LIGHT.text))
    return (*found, replace(problem, fusion="none"))


def charged(ask: Ask, problem: Problem, hit: Hit) -> Hit:
    """The hit of a stand-in, `problem`, with the time of what that did not have."""
    if problem.fusion == "none" or hit.branches or hit.config == ATEN:
        return hit  # Rows without an epilogue lack the kernel after ATen as well, which takes at least as long.
    same = problem.epilogue == ask.problem.epilogue
    us = BIAS * hit.expected_us if same else extra_us(ask.problem, ask.device, hit.expected_us)
    if us == 0:
        return hit
    expected = hit.expected_us + us
    evidence = {**hit.evidence, "charged_us": us}
    return replace(hit, expected_us=expected, speedup=hit.speedup * hit.expected_us / expected, evidence=evidence)
