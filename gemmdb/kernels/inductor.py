"""Inductor's own Triton kernels: its templates, each generated with one fixed config, and its multiply-and-sum; with
the rules of legality of both."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from pathlib import Path

from gemmdb import trust
from gemmdb.kernels import hardware, rules
from gemmdb.kernels.kernel import ConfigLike, Domain, IntRange, Kernel, always, never
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected

_PARAMS: Mapping[str, Domain] = {
    "block_m": IntRange(16, 256, True), "block_n": IntRange(16, 256, True), "block_k": IntRange(16, 256, True),
    "group_m": IntRange(1, 16, True), "warps": IntRange(1, 16, True), "stages": IntRange(1, 8),
}  # fmt: skip
EQUIVALENT = {
    "d4b90a54b960e7b3": "d99842e466803e2d",
    "546c26ab76103966": "0ddad0df156c4100",
    "3027d8e7e1fd500c": "4acd70184f4e6d7d",
    "2574d3865e8de472": "21aeac63b1bdf2a4",
}
"""Digests of torch 2.11's templates, each with the digest of a later template (2.12 to 2.15) that renders the same
kernels. The later templates cast indices to the index type, which changes nothing while offsets fit 32 bits, and larger
operands are not legal. The template of batches differs between 2.11, 2.12 and 2.13 and later; 2.15 only renames a
variable in it."""


@functools.cache
def digest(file: str) -> str:
    """The digest of that template of the installed torch; empty without torch. It reads the package's file and does not
    import torch."""
    # Imported where it is used: it takes longer than all of gemmdb's own modules.
    from importlib import metadata

    name = f"torch/_inductor/kernel/templates/{file}.py.jinja"
    try:
        path = metadata.distribution("torch").locate_file(name)
        return trust.sha256_of(Path(str(path)))[:16]
    except (OSError, metadata.PackageNotFoundError):
        return ""


def whole_steps(config: ConfigLike, problem: Problem) -> int:
    """Whether K is whole steps of the template, as 0 or 1. Where it is not, the template masks the loads of every step,
    which takes up to half of its speed (mm and addmm that no preset lists, on an H200)."""
    return int(problem.k % int(config.values["block_k"]) == 0)


def rejection(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    """Why a config of Inductor's Triton templates cannot run, None when it can."""
    if symbolic:
        return Rejected("the template is generated for fixed sizes")
    if rejected := rules.reject_empty(problem):
        return rejected
    if problem.spec.batched and (rejected := rules.reject_batch(problem)):
        return rejected
    if problem.spec.grouped:
        if rejected := _reject_grouped(config, problem, device):
            return rejected
    elif problem.scaled:
        if rejected := _reject_scaled(config, problem, device):
            return rejected
    elif problem.a.dtype not in ("bf16", "fp16", "fp32", "int8") or problem.numerics.fp32 == "bf16":
        return Rejected("the template multiplies bf16, fp16, int8, and fp32 in full or as TF32")
    if problem.scalars == "beta0":
        return Rejected("the template multiplies the bias by a beta of 0, and NaN times 0 is NaN")
    if rejected := rules.reject_strides(problem):
        return rejected
    if problem.batch * problem.m * problem.n >= hardware.LARGEST_OFFSET:
        return Rejected("offsets within the output are 32 bits wide")
    return _reject_tile(config, problem, device) or (
        _reject_maps(config, problem) if config.spec.maps(config) else None
    )


def reject_sum(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    """Why Inductor's multiply-and-sum is not taken, None when it is."""
    if rejected := rules.reject_empty(problem):
        return rejected
    if symbolic:
        return Rejected("how the sum is cut is decided for fixed sizes")
    if 1 not in (problem.m, problem.n):
        return Rejected("elementwise products are summed for one row or one column")
    if problem.k == 1:
        return Rejected("Inductor multiplies elements where K is 1")
    if problem.scalars != "unit":
        return Rejected("the sum has no alpha and beta")
    return rules.reject_strides(problem)


def _reject_scaled(config: ConfigLike, problem: Problem, device: Device) -> Rejected | None:
    if rejected := rules.reject_fp8(problem, device) or rules.reject_block_scales(problem):
        return rejected
    if problem.k <= rules.FP8_MULTIPLE:
        return Rejected(f"Triton fails where K is {rules.FP8_MULTIPLE} or less, says Inductor")
    if rejected := _reject_shallow(config, problem):
        return rejected
    if config.spec.maps(config) and problem.bias is not None:
        return Rejected("the template with tensor maps takes no bias")
    return None


def _reject_grouped(config: ConfigLike, problem: Problem, device: Device) -> Rejected | None:
    if device.capability < hardware.FIRST_TMA:
        return Rejected("the template copies by tensor maps, which need compute capability 9.0")
    if problem.ragged == "m" and problem.fusion != "none":
        return Rejected("rows beyond the last group are not stored, but what is fused may need them")
    found = rules.reject_fp8(problem, device) or _reject_shallow(config, problem)
    return found or rules.reject_unaligned_groups(problem) or rules.reject_padded_output(problem)


def _reject_shallow(config: ConfigLike, problem: Problem) -> Rejected | None:
    if problem.scaled and int(config.values["block_k"]) < hardware.MIN_DEPTH:
        return Rejected(f"the matrix unit takes {hardware.MIN_DEPTH} fp8 of K at once")
    return None


@rules.sizeless
def _reject_tile(config: ConfigLike, problem: Problem, device: Device) -> Rejected | None:
    value = {name: int(number) for name, number in config.params}
    if problem.spec.integer and value["block_k"] < hardware.MIN_DEPTH:
        return Rejected(f"the matrix unit takes {hardware.MIN_DEPTH} int8 of K at once")
    block = value["block_m"], value["block_n"], value["block_k"]
    if rejected := hardware.reject_slow_compile(block, value["warps"], rules.without_matrix_unit(problem, device)):
        return rejected
    stage = hardware.stage_bytes(block, hardware.item_sizes(problem.a, problem.b))
    if stage * value["stages"] > hardware.shared_bytes(device):
        return Rejected("the pipeline's stages do not fit into shared memory")
    return None


def _reject_maps(config: ConfigLike, problem: Problem) -> Rejected | None:
    if int(config.values["warps"]) < hardware.GROUP_WARPS:
        return Rejected(f"the tensor copies of fewer than {hardware.GROUP_WARPS} warps are not safe, says Inductor")
    if 1 in (problem.m, problem.n, problem.k):
        return Rejected("a tensor map needs aligned strides, and the stride of a size of 1 is arbitrary")
    return rules.reject_unaligned_rows(problem)


def _kernel(name: str, file: str, ops: tuple[str, ...], maps: bool = False) -> Kernel:
    return Kernel(
        "triton", name, ops, ("cuda",), 1, _PARAMS, rejection=rejection, maps=always if maps else never, emitted=True,
        compiled=whole_steps, digest=lambda: digest(file), equivalent=EQUIVALENT,
    )  # fmt: skip


TEMPLATES = (
    # A tile per program, and persistent programs with TMA.
    _kernel("inductor_mm", "triton_mm", ("mm", "addmm", "int_mm", "scaled_mm")),
    _kernel("inductor_persistent_tma", "triton_persistent_tma_mm", ("mm", "addmm"), maps=True),
    # For batches: a tile of one matrix per program.
    _kernel("inductor_bmm", "triton_bmm", ("bmm",)),
    # For fp8 operands with scales: persistent programs with TMA.
    _kernel("inductor_scaled_tma", "triton_epilogue_scaled_mm", ("scaled_mm",), maps=True),
    # For groups: persistent programs with TMA.
    _kernel("inductor_grouped", "triton_mm_grouped", ("grouped_mm",), maps=True),
)
"""Each kernel with the name of torch's template file."""
SUM = Kernel(
    "triton", "inductor_sum", ("mm", "addmm", "mixed_mm"), ("cuda",), 1, rejection=reject_sum, emitted=True
)  # fmt: skip
"""Elementwise products and their sum over K in one kernel without the matrix unit, which Inductor generates and tiles.
With `coordinate_descent_tuning`, torch makes this of every GEMM of one row or one column."""
