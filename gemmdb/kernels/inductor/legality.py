"""Which configs of Inductor's Triton templates can run on which problem; each rule with its reason."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from gemmdb.kernels import fp8, hardware, rules
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

if TYPE_CHECKING:
    from gemmdb.kernels.config import Config


def illegal(config: Config, problem: Problem, device: Device, symbolic: Collection[str]) -> str | None:
    """Why a config of Inductor's Triton templates cannot run, None when it can."""
    if reason := rules.unsolved(config, problem, device):
        return reason
    if symbolic:
        return "the template is generated for fixed sizes"
    if reason := rules.empty(problem):
        return reason
    if problem.spec.batched and (reason := rules.unbatched(problem)):
        return reason
    if problem.spec.grouped:
        if reason := _grouped(config, problem, device):
            return reason
    elif problem.scaled:
        if reason := _scaled(config, problem, device):
            return reason
    elif problem.a.dtype not in ("bf16", "fp16", "fp32", "int8") or problem.numerics.fp32 == "bf16":
        return "the template multiplies bf16, fp16, int8, and fp32 in full or as TF32"
    if problem.scalars == "beta0":
        return "the template multiplies the bias by a beta of 0, and NaN times 0 is NaN"
    if reason := rules.unstepped(problem):
        return reason
    if problem.batch * problem.m * problem.n >= hardware.LARGEST_OFFSET:
        return "offsets within the output are 32 bits wide"
    return _tile(config, problem, device) or (_maps(config, problem) if config.spec.maps(config) else None)


def illegal_sum(config: Config, problem: Problem, device: Device, symbolic: Collection[str]) -> str | None:
    """Why Inductor's multiply-and-sum is not taken, None when it is."""
    if reason := rules.unsolved(config, problem, device) or rules.empty(problem):
        return reason
    if symbolic:
        return "how the sum is cut is decided for fixed sizes"
    if 1 not in (problem.m, problem.n):
        return "elementwise products are summed for one row or one column"
    if problem.k == 1:
        return "Inductor multiplies elements where K is 1"
    if problem.scalars != "unit":
        return "the sum has no alpha and beta"
    return rules.unstepped(problem)


def _scaled(config: Config, problem: Problem, device: Device) -> str | None:
    if reason := fp8.unmultiplied(problem, device):
        return reason
    if problem.scales == "block":
        return "scales of blocks are applied within the sum"
    if problem.k <= fp8.MULTIPLE:
        return f"Triton fails where K is {fp8.MULTIPLE} or less, says Inductor"
    if reason := _shallow(config, problem):
        return reason
    if config.spec.maps(config) and problem.bias is not None:
        return "the template with tensor maps takes no bias"
    return None


def _grouped(config: Config, problem: Problem, device: Device) -> str | None:
    if device.capability < hardware.FIRST_TMA:
        return "the template copies by tensor maps, which need compute capability 9.0"
    if problem.ragged == "m" and problem.fusion != "none":
        return "rows beyond the last group are not stored, but what is fused may need them"
    found = fp8.unmultiplied(problem, device) or _shallow(config, problem)
    return found or rules.unaligned_groups(problem) or rules.unpadded(problem)


def _shallow(config: Config, problem: Problem) -> str | None:
    if problem.scaled and int(config.values["block_k"]) < hardware.LEAST_DEPTH:
        return f"the matrix unit takes {hardware.LEAST_DEPTH} fp8 of K at once"
    return None


@rules.sizeless
def _tile(config: Config, problem: Problem, device: Device) -> str | None:
    value = {name: int(number) for name, number in config.params}
    if problem.spec.integer and value["block_k"] < hardware.LEAST_DEPTH:
        return f"the matrix unit takes {hardware.LEAST_DEPTH} int8 of K at once"
    block = value["block_m"], value["block_n"], value["block_k"]
    if reason := hardware.crowded(block, value["warps"], rules.without_matrix_unit(problem, device)):
        return reason
    stage = hardware.stage_bytes(block, hardware.item_sizes(problem.a, problem.b))
    if stage * value["stages"] > hardware.shared_bytes(device):
        return "the pipeline's stages do not fit into shared memory"
    return None


def _maps(config: Config, problem: Problem) -> str | None:
    if int(config.values["warps"]) < hardware.GROUP_WARPS:
        return f"the tensor copies of fewer than {hardware.GROUP_WARPS} warps are not safe, says Inductor"
    if 1 in (problem.m, problem.n, problem.k):
        return "a tensor map needs aligned strides, and that of a size of 1 may be anything"
    return rules.unmapped(problem)
