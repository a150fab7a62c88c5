"""What our Triton kernels share: the constants that their templates read, the grid of tiles, and rules of legality."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gemmdb.kernels import hardware, rules
from gemmdb.kernels.kernel import ConfigLike, Domain, IntRange, Kernel, OneOf, Rule, Template
from gemmdb.kernels.triton import EQUIVALENT, TL, counts_arrivals, digest, memory
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected

DEQUANT = OneOf(("cast", "bits"))
"""How a weight tile is dequantised: by a conversion, or by building floats from the bits."""
WARPS, STAGES, SWAP = IntRange(1, 16, True), IntRange(1, 8), IntRange(0, 1)
"""`swap`: the weight is the left operand of the matrix unit."""
_LAUNCH = ("warps", "stages")


def kernel(
    ops: tuple[str, ...], params: Mapping[str, Domain], rejection: Rule, template: Template, **rest: Any
) -> Kernel:
    """The record of one of our Triton kernels, which is named after the folder of its template. `rest`: further fields
    of the record."""
    name = template.package.rpartition(".")[2]
    return Kernel(
        "triton", name, ops, ("cuda",), 1, params, rejection=rejection, template=template,
        digest=partial(digest, name), equivalent=EQUIVALENT, **rest,
    )  # fmt: skip


def constants(config: ConfigLike, problem: Problem) -> dict[str, int | str]:
    """The constants that every template reads: the integer parameters in capitals, and the facts about the problem."""
    value = config.values
    found: dict[str, int | str] = {
        name.upper(): number for name, number in value.items() if isinstance(number, int) and name not in _LAUNCH
    }
    return found | {
        "MIXED": problem.spec.dequantises,
        "INTEGER": problem.spec.integer,
        "A_ROW": problem.a.row_major,
        "B_ROW": problem.b.row_major,
        "A_DTYPE": f"tl.{TL[problem.a.dtype]}",
        "B_SIGNED": problem.b.dtype != "uint8",
        "BITS": value.get("dequant") == "bits",
        "EVEN_K": problem.k % int(value["block_k"]) == 0,
    }


def tile_constants(config: ConfigLike, problem: Problem) -> dict[str, int | str]:
    """`constants`, and those of a kernel that multiplies tiles on the matrix unit."""
    swap, tf32 = config.values["swap"] == 1, problem.numerics.fp32 == "tf32"
    return constants(config, problem) | {"SWAP": swap, "TF32": tf32}


def even_constants(config: ConfigLike, problem: Problem) -> dict[str, int | str]:
    """`tile_constants`, and those of a kernel that loads by pointers. The kernel steps along M in memory only if A is
    transposed; otherwise one kernel serves every M."""
    m_even = not problem.a.row_major and problem.m % 16 == 0
    return tile_constants(config, problem) | {"M_EVEN": m_even, "N_EVEN": problem.n % 16 == 0}


def scaled(problem: Problem) -> bool:
    """Whether a kernel that can apply the scale of a quantised weight does so for this problem."""
    return problem.spec.dequantises and problem.fusion == "scale"


def tile_grid(m: Any, n: Any, meta: Mapping[str, Any], cdiv: Callable[[Any, Any], Any]) -> tuple[Any, Any, Any]:
    """One program per output tile and slice of K."""
    return cdiv(m, meta["BLOCK_M"]) * cdiv(n, meta["BLOCK_N"]), meta["SPLIT_K"], 1


def column_grid(m: Any, n: Any, meta: Mapping[str, Any], cdiv: Callable[[Any, Any], Any]) -> tuple[Any, Any, Any]:
    """One program per block of columns."""
    return cdiv(n, meta["BLOCK_N"]), 1, 1


def reduction(config: ConfigLike) -> str:
    """How the partial sums are summed, of a kernel whose last program of each tile does it if K is split."""
    return "none" if config.values["split_k"] == 1 else "fixup"


def loads_by_tma(config: ConfigLike) -> bool:
    """Whether a config with a parameter `load` loads by tensor maps."""
    return config.values["load"] == "tma"


_last: tuple[Problem | None, Device | None, Rejected | None] = None, None, None


def reject_problem(problem: Problem, device: Device) -> Rejected | None:
    """Why none of our kernels can run. It is cached: a lookup checks twenty configs of one problem."""
    global _last
    before, there, rejected = _last
    if before is not problem or there is not device:
        rejected = _reject_problem(problem, device)
        _last = problem, device, rejected
    return rejected


def _reject_problem(problem: Problem, device: Device) -> Rejected | None:
    if rejected := rules.reject_empty(problem):
        return rejected
    if problem.a.dtype not in TL:
        return Rejected(f"the kernels multiply no {problem.a.dtype}")
    if problem.numerics.fp32 == "bf16":
        return Rejected("fp32 is multiplied in full or as TF32 here")
    return rules.reject_fp8(problem, device) or rules.reject_strides(problem)


def reject_dequant(config: ConfigLike, problem: Problem) -> Rejected | None:
    """Only a quantised weight has a choice of how to dequantise it."""
    if not problem.spec.dequantises and config.values.get("dequant", "cast") != "cast":
        return Rejected("there is nothing to dequantise")
    return None


@rules.sizeless
def reject_slow_compile(config: ConfigLike, problem: Problem, device: Device) -> Rejected | None:
    """Why a config of a kernel with tiles would take too long to compile, None when it does not."""
    block, warps = memory.tile_of(config), int(config.values["warps"])
    if rejected := hardware.reject_slow_compile(block, warps, rules.without_matrix_unit(problem, device)):
        return rejected
    if not counts_arrivals(config):
        return None
    split = int(config.values["split_k"])
    if split > hardware.MAX_SPLITS:
        return Rejected(f"a program would add up more than {hardware.MAX_SPLITS} slices: slow for the compiler")
    if block[0] * block[1] * split > hardware.MAX_PARTIALS * hardware.WARP_THREADS * warps:
        return Rejected(f"a thread would add up more than {hardware.MAX_PARTIALS} partial sums: slow for the compiler")
    return None


def reject_tile(config: ConfigLike, problem: Problem, device: Device) -> Rejected | None:
    """The rules for kernels that multiply tiles on the matrix unit."""
    return (
        reject_problem(problem, device)
        or rules.reject_block_scales(problem)
        or _reject_sizeless_tile(config, problem, device)
    )


@rules.sizeless
def _reject_sizeless_tile(config: ConfigLike, problem: Problem, device: Device) -> Rejected | None:
    if rejected := reject_slow_compile(config, problem, device):
        return rejected
    if ITEM_SIZES[problem.a.dtype] == 1 and int(config.values["block_k"]) < hardware.MIN_DEPTH:
        return Rejected(f"the matrix unit takes {hardware.MIN_DEPTH} {problem.a.dtype} of K at once")
    if rejected := reject_dequant(config, problem):
        return rejected
    # The kernel of groups adds the sums of each step in fp32.
    slow = problem.scaled and not problem.numerics.fast and not problem.spec.grouped
    if slow and not rules.summed_in_full(device, memory.uses_warp_groups(config, problem)):
        return Rejected("the sums stay in the matrix unit's accumulator, which is the fast accumulation")
    if memory.shared_bytes(config, problem) > hardware.shared_bytes(device):
        return Rejected("the pipeline's stages do not fit into shared memory")
    return None


def reject_split(config: ConfigLike, problem: Problem) -> Rejected | None:
    """The rules for kernels that split K."""
    split, step = int(config.values["split_k"]), int(config.values["block_k"])
    if split > -(-problem.k // step):
        return Rejected(f"K={problem.k} has fewer than {split} steps of {step}")
    if split * (problem.m + 256) * (problem.n + 256) >= hardware.LARGEST_OFFSET:
        return Rejected("offsets within the partial sums are 32 bits wide")
    return None
