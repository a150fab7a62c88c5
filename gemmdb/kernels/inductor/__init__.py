"""Inductor's own Triton kernels: its templates, each generated with one fixed config, and its multiply-and-sum."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gemmdb import trust
from gemmdb.kernels.inductor.legality import illegal, illegal_sum
from gemmdb.kernels.kernel import Domain, IntRange, Kernel

if TYPE_CHECKING:
    from gemmdb.kernels.config import Config
    from gemmdb.key.problem import Problem

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


def whole_steps(config: Config, problem: Problem) -> int:
    """Whether K is whole steps of the template, as 0 or 1. Where it is not, the template masks the loads of every step,
    which takes up to half of its speed (mm and addmm that no preset lists, on an H200)."""
    return int(problem.k % int(config.values["block_k"]) == 0)


def _kernel(name: str, file: str, ops: tuple[str, ...], maps: bool = False) -> Kernel:
    def by_maps(config: Config) -> bool:
        return maps

    def present() -> str:
        return digest(file)

    return Kernel(
        "triton", name, ops, ("cuda",), 1, _PARAMS, illegal=illegal, maps=by_maps, emitted=True, compiled=whole_steps,
        digest=present, equivalent=EQUIVALENT,
    )  # fmt: skip


TEMPLATES = (
    # A tile per program, and persistent programs with TMA.
    _kernel("inductor_mm", "triton_mm", ("mm", "addmm", "int_mm", "scaled_mm")),
    _kernel("inductor_persistent_tma", "triton_persistent_tma_mm", ("mm", "addmm"), maps=True),
    # For products of batches: a tile of one matrix per program.
    _kernel("inductor_bmm", "triton_bmm", ("bmm",)),
    # For products of fp8 operands with scales: persistent programs with TMA.
    _kernel("inductor_scaled_tma", "triton_epilogue_scaled_mm", ("scaled_mm",), maps=True),
    # For products of groups: persistent programs with TMA.
    _kernel("inductor_grouped", "triton_mm_grouped", ("grouped_mm",), maps=True),
)
"""Each kernel with the name of torch's template file."""
SUM = Kernel(
    "triton", "inductor_sum", ("mm", "addmm", "mixed_mm"), ("cuda",), 1, illegal=illegal_sum, emitted=True
)  # fmt: skip
"""Elementwise products and their sum over K in one kernel without the matrix unit, which Inductor generates and tiles.
With `coordinate_descent_tuning`, torch makes this of every product of one row or one column."""
