"""Stand-in problems for a GEMM whose epilogue was not measured, and the epilogue's extra cost.

Rows of the same GEMM without its bias, with another epilogue or with none show which kernels are fastest, but not the
cost of this epilogue inside a kernel. The cost beyond the measured epilogue is added: exponentials, which default mode
hides behind memory traffic, and a transposed store.
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
"""Cost of a bias or of a wider result on a GPU, as a fraction of the kernel's time. Of 169 configs that beat ATen
without a bias on an H200, one in twenty lost more than this to a bias; the median lost 1.6% (`python -m benchmarks.h200
biases`)."""
GROUPED = (LIGHT.text, f"{LIGHT.text}:fp32")
"""The epilogues of a grouped_mm whose rows stand in for each other, and for a grouped_mm without one."""
BARE = 0.07
"""How much longer a kernel takes, relative to ATen, without such an epilogue, which costs ATen a kernel of its own: the
median of 18 pairs of grouped_mm on an H200 where it gains 5% or more with the epilogue. Without, none of them is
slower than ATen by 2%. Of 148 such pairs of mm, 12 are: their rows do not stand in."""


def stand_ins(problem: Problem, kind: str, fixed: bool = True) -> tuple[Problem, ...]:
    """Return stand-ins for a problem with an epilogue, most similar first: on a GPU without the bias, then with the
    light epilogue, then without any. If the GEMM's result is stored anyway, fusion saves little, and the light epilogue
    is not representative. Empty for a problem without an epilogue, except a grouped_mm: see GROUPED. `kind`: the device
    kind. `fixed`: no size is symbolic.

    On a GPU, a weight that freezing made constant also has the stand-ins of one that is an input, where `fixed`: no
    kernel packs it. The cast of an integer weight is folded then, so that ATen takes another time."""
    found = _with_other_epilogues(problem, kind)
    if not problem.constant or not fixed or kind != "cuda" or problem.spec.dequantises:
        return found
    plain = replace(problem, constant=False)
    return (plain, *found, *_with_other_epilogues(plain, kind))


def _with_other_epilogues(problem: Problem, kind: str) -> tuple[Problem, ...]:
    """Return the stand-ins with another epilogue, or with none.

    On a GPU, a scaled integer GEMM with an fp32 result uses the rows of one that stores bf16: that is what is stored
    once Inductor fuses the consumer."""
    own = problem.epilogue
    if kind == "cuda" and is_light_experts(problem):
        return tuple(replace(problem, fusion=one) for one in (*GROUPED, "none") if one != problem.fusion)
    if own is None:
        wide = problem.spec.integer and problem.fusion == "scale" and problem.out == "fp32"
        return (replace(problem, out="bf16"),) if wide and kind == "cuda" else ()
    vector = problem.spec.unbiased and problem.scalars == "unit" and problem.bias and problem.bias.kind == "1d"
    found = [replace(problem, op=problem.spec.unbiased, bias=None)] if kind == "cuda" and vector else []
    if own != LIGHT and not own.kept:
        found.append(replace(problem, fusion=LIGHT.text))
    return (*found, replace(problem, fusion="none"))


def is_light_experts(problem: Problem) -> bool:
    """Return whether a problem is a grouped_mm of 16 bits with one of GROUPED, or with no epilogue."""
    return problem.spec.grouped and problem.out != "fp32" and problem.fusion in (*GROUPED, "none")


def same_but_constant(problem: Problem, other: Problem) -> bool:
    """Return whether a stand-in differs only in that its weight is an input."""
    return problem.constant and replace(problem, constant=False) == other


def charged(ask: Ask, problem: Problem, hit: Hit) -> Hit:
    """Return the hit for the stand-in `problem`, with the cost of the missing bias or epilogue added."""
    if problem.fusion == "none" or hit.branches or hit.config == ATEN:
        return hit  # Rows without an epilogue also omit the kernel after ATen, which takes at least as long.
    if same_but_constant(ask.problem, problem):
        return hit
    if problem.epilogue == ask.problem.epilogue:
        us = BIAS * hit.expected_us
    elif ask.problem.epilogue is None:
        us = BARE * hit.expected_us
    else:
        us = extra_us(ask.problem, ask.device, hit.expected_us)
    if us == 0:
        return hit
    expected = hit.expected_us + us
    evidence = {**hit.evidence, "charged_us": us}
    return replace(hit, expected_us=expected, speedup=hit.speedup * hit.expected_us / expected, evidence=evidence)
