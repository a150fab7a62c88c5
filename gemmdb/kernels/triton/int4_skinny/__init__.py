"""`int4_skinny`: a few rows times an int4 weight that goes straight from memory to registers of the matrix unit."""

from __future__ import annotations

from collections.abc import Collection

from gemmdb.kernels import hardware
from gemmdb.kernels.kernel import ConfigLike, IntRange, OneOf, Template
from gemmdb.kernels.triton import TL, int4, shared
from gemmdb.key.device import Device
from gemmdb.key.int4 import ADDED, MXFP4, PLAIN
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected

FEW_ROWS, MAX_ROWS = 8, 16
"""Rows that the matrix unit multiplies at once with single warps, and rows of A at most."""
DEPTH = 128
"""Neighbours along K that a warp multiplies in a step: each of its lanes loads 16 bytes of a column."""
COLUMNS_OF_WARP = 64
"""Columns of which a warp has words at least, if these have eight columns each. It multiplies all or half of them."""
MAX_REGISTERS, OTHER_REGISTERS = 200, 32
"""Registers of a thread for its sums, weights, their scales and the activations, and those for all else. A config with
more than that writes registers to memory on Hopper, where one with less keeps all of them or all but eight."""


def names(config: ConfigLike, problem: Problem) -> dict[str, int | str]:
    """The constants of the template."""
    own, value = problem.int4, config.values
    assert own is not None
    warps, stages = int(value["warps"]), int(value["stages"])
    found: dict[str, int | str] = {
        "BLOCK_M": _rows(problem), "BLOCK_N": value["block_n"], "WARPS": warps, "STAGES": stages,
        "SHARED": value["activations"] == "shared", "BEFORE": value["next"] == "before",
        "A_DTYPE": f"tl.{TL[problem.a.dtype]}", "GROUP": own.size, "LANE": own.inner // 2,
        "HIGH_FIRST": own.packing == "high-first", "ADDED": own.packing in ADDED,
        "APART": own.packing == PLAIN, "GIVEN": int4.given(problem),
        "IN_WORDS": own.zeros_in_words,
        **int4.along_n(own),
        "EVEN": problem.k % (DEPTH * warps * stages) == 0,
    }  # fmt: skip
    if lean(config):
        found |= {"LEAN": True, "AHEAD": value["activations"] == "ahead"}
    if not adjacent(config):
        return found
    return found | {"ADJACENT": True, "EVEN_GROUPS": problem.k // own.size % (stages * _parts(problem)) == 0}


def adjacent(config: ConfigLike) -> bool:
    """Whether the steps of a warp are neighbours along K, as many at a time as there are stages."""
    return "adjacent" in config.values


def lean(config: ConfigLike) -> bool:
    """Whether a step has fewer instructions."""
    return "lean" in config.values


def _rows(problem: Problem) -> int:
    """Rows that are multiplied, those beyond the end among them."""
    return FEW_ROWS if problem.m <= FEW_ROWS else MAX_ROWS


def _parts(problem: Problem) -> int:
    """Groups of a step."""
    assert problem.int4 is not None
    return max(DEPTH // problem.int4.size, 1)


def rejection(config: ConfigLike, problem: Problem, device: Device, symbolic: Collection[str]) -> Rejected | None:
    """Why a config cannot run, None when it can."""
    if rejected := shared.reject_problem(problem, device):
        return rejected
    own, value = problem.int4, config.values
    assert own is not None
    if problem.m > MAX_ROWS or "m" in symbolic:
        return Rejected(f"the number of rows is fixed, and at most {MAX_ROWS}")
    if own.bits != 4 or own.packing == MXFP4:
        return Rejected("it takes integers of four bits")
    if own.along_n and (adjacent(config) or not lean(config)):
        return Rejected("a weight whose memory runs along N takes the lean form, without neighbouring steps")
    if int4.along_n(own)["OF_COLUMNS"] and int(value["block_n"]) < COLUMNS_OF_WARP // 2:
        return Rejected(f"a warp has words of {COLUMNS_OF_WARP} columns at once")
    if int4.along_n(own)["OF_COLUMNS"] and int(value["block_n"]) < COLUMNS_OF_WARP and problem.n % COLUMNS_OF_WARP:
        return Rejected(f"two programs share words of {COLUMNS_OF_WARP} columns")
    if not problem.a.row_major:
        return Rejected("K has to run along memory in the activations")
    if not lean(config) and (problem.m > FEW_ROWS or value["activations"] == "ahead"):
        return Rejected(f"more than {FEW_ROWS} rows, and activations that are loaded ahead, take the lean form")
    if value["activations"] == "ahead" and problem.a.layout.align < 2:
        return Rejected("two activations are read as one number, which has to be aligned")
    if problem.k % DEPTH:
        return Rejected(f"a warp multiplies {DEPTH} of K at once")
    if adjacent(config) and value["stages"] not in (2, 4):
        return Rejected("neighbouring steps are two or four")
    most = min(MAX_REGISTERS, hardware.REGISTERS // (hardware.WARP_THREADS * int(value["warps"])) - OTHER_REGISTERS)
    if registers(config, problem) > most:
        return Rejected(f"sums, weights and activations do not fit into {most} registers of each thread")
    return None


def registers(config: ConfigLike, problem: Problem) -> int:
    """Registers of a thread for the sums of its columns so far and of a step, for the weights and scales of all stages
    and of the step that is multiplied, and for a step's activations, their sums, and those that are loaded ahead."""
    columns, stages = int(config.values["block_n"]), int(config.values["stages"])
    own, threads, rows = problem.int4, hardware.WARP_THREADS, _rows(problem)
    assert own is not None
    parts = _parts(problem)
    sums = (parts + (1 if lean(config) else parts)) * rows * columns // threads
    read = max(columns, COLUMNS_OF_WARP) if int4.along_n(own)["OF_COLUMNS"] else columns
    weights = (stages + 1 + own.along_n) * read * DEPTH // 8 // threads  # Rows along N have their own addresses.
    scales = columns // 8 * parts * (2 + stages * (1 + int4.given(problem)))
    activations = rows * DEPTH // 2 // threads * (1 + stages * (config.values["activations"] == "ahead"))
    return sums + weights + scales + activations + 4 * parts * rows // FEW_ROWS


KERNEL = shared.kernel(
    ("mixed_mm",), {
        "block_n": IntRange(16, 128, True), "activations": OneOf(("registers", "shared", "ahead")),
        "next": OneOf(("before", "after")), "warps": shared.WARPS, "stages": IntRange(1, 4),
    },
    rejection, Template(__name__, names, shared.column_grid), optional={"adjacent": OneOf((1,)), "lean": OneOf((1,))},
    int4=True,
)  # fmt: skip
