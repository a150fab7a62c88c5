"""What our Triton kernels share: the constants that their templates read, the grid of tiles, and rules of legality."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gemmdb.kernels import fp8, hardware, rules
from gemmdb.kernels.kernel import IntRange, OneOf
from gemmdb.kernels.triton import TL, counts_arrivals, memory
from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES
from gemmdb.key.problem import Problem

if TYPE_CHECKING:
    from gemmdb.kernels.config import Config

DEQUANT = OneOf(("cast", "bits"))
"""How a weight tile is dequantised: by a conversion, or by building floats from the bits."""
WARPS, STAGES, SWAP = IntRange(1, 16, True), IntRange(1, 8), IntRange(0, 1)
"""`swap`: the weight is the left operand of the matrix unit."""
_LAUNCH = ("warps", "stages")


def constants(config: Config, problem: Problem) -> dict[str, int | str]:
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


def tile_constants(config: Config, problem: Problem) -> dict[str, int | str]:
    """`constants`, and those of a kernel that multiplies tiles on the matrix unit."""
    swap, tf32 = config.values["swap"] == 1, problem.numerics.fp32 == "tf32"
    return constants(config, problem) | {"SWAP": swap, "TF32": tf32}


def even_constants(config: Config, problem: Problem) -> dict[str, int | str]:
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


def illegal(config: Config, problem: Problem, device: Device) -> str | None:
    """The rules for all our kernels but those of tiles."""
    return rules.unsolved(config, problem, device) or _unfit(problem, device)


def in_blocks(problem: Problem) -> str | None:
    """Why a kernel that scales its sums at the end cannot run."""
    return "scales of blocks are applied within the sum" if problem.scales == "block" else None


_last: tuple[Problem | None, Device | None, str | None] = None, None, None


def _unfit(problem: Problem, device: Device) -> str | None:
    """Why none of our kernels can run. It is remembered: a lookup asks for twenty configs of one problem."""
    global _last
    before, there, reason = _last
    if before is not problem or there is not device:
        reason = _unfit_problem(problem, device)
        _last = problem, device, reason
    return reason


def _unfit_problem(problem: Problem, device: Device) -> str | None:
    if found := rules.empty(problem):
        return found
    if problem.a.dtype not in TL:
        return f"the kernels multiply no {problem.a.dtype}"
    if problem.numerics.fp32 == "bf16":
        return "fp32 is multiplied in full or as TF32 here"
    return fp8.unmultiplied(problem, device) or rules.unstepped(problem)


def undequantised(config: Config, problem: Problem) -> str | None:
    """Only a quantised weight has a choice of how to dequantise it."""
    if not problem.spec.dequantises and config.values.get("dequant", "cast") != "cast":
        return "there is nothing to dequantise"
    return None


@rules.sizeless
def crowded(config: Config, problem: Problem, device: Device) -> str | None:
    """Why a config of a kernel with tiles would take too long to compile, None when it does not."""
    m, n, k, warps = (int(config.values[name]) for name in ("block_m", "block_n", "block_k", "warps"))
    if reason := hardware.crowded((m, n, k), warps, rules.without_matrix_unit(problem, device)):
        return reason
    return _crowded_sum(m * n, int(config.values["split_k"]), warps) if counts_arrivals(config) else None


def _crowded_sum(sums: int, split: int, warps: int) -> str | None:
    """Why the program that adds up the slices of a tile would take too long to compile, None when it does not."""
    if split > hardware.MOST_SPLITS:
        return f"a program would add up more than {hardware.MOST_SPLITS} slices, which takes the compiler long"
    if sums * split > hardware.MOST_PARTIALS * hardware.WARP_THREADS * warps:
        return f"a thread would add up more than {hardware.MOST_PARTIALS} partial sums, which takes the compiler long"
    return None


def illegal_tile(config: Config, problem: Problem, device: Device) -> str | None:
    """The rules for kernels that multiply tiles on the matrix unit."""
    return _unfit(problem, device) or in_blocks(problem) or _unfit_tile(config, problem, device)


@rules.sizeless
def _unfit_tile(config: Config, problem: Problem, device: Device) -> str | None:
    if reason := rules.unsolved(config, problem, device):
        return reason
    if reason := crowded(config, problem, device):
        return reason
    if ITEM_SIZES[problem.a.dtype] == 1 and int(config.values["block_k"]) < hardware.LEAST_DEPTH:
        return f"the matrix unit takes {hardware.LEAST_DEPTH} {problem.a.dtype} of K at once"
    if reason := undequantised(config, problem):
        return reason
    # The kernel of groups adds the sums of each step in fp32.
    slow = problem.scaled and not problem.numerics.fast and not problem.spec.grouped
    if slow and not fp8.summed_in_full(device, memory.grouped(config, problem)):
        return "the sums stay in the matrix unit's accumulator, which is the fast accumulation"
    if memory.shared_bytes(config, problem) > hardware.shared_bytes(device):
        return "the pipeline's stages do not fit into shared memory"
    return None


def illegal_split(config: Config, problem: Problem) -> str | None:
    """The rules for kernels that split K."""
    split, step = int(config.values["split_k"]), int(config.values["block_k"])
    if split > -(-problem.k // step):
        return f"K={problem.k} has fewer than {split} steps of {step}"
    if split * (problem.m + 256) * (problem.n + 256) >= hardware.LARGEST_OFFSET:
        return "offsets within the partial sums are 32 bits wide"
    return None
