"""The limits that NVIDIA GPUs set for kernels, each once. Legality, the menus, the cost model and the generator all
read them here.

Sources: NVIDIA's programming guide (technical specifications by compute capability) and PTX manual. Constants that come
from measurements say so.
"""

from __future__ import annotations

from gemmdb.key.device import Device
from gemmdb.key.layout import ITEM_SIZES, VECTOR_BYTES
from gemmdb.key.operands import Operand
from gemmdb.rejected import Rejected

SHARED_BYTES = 227 * 1024
"""Shared memory of a block on Hopper. It also stands for a device that does not say how much it has."""
BARRIER_BYTES = 512
"""Shared memory that is set aside for the barriers of a pipeline stage."""
REGISTERS = 65_536
"""32-bit registers of a multiprocessor, of every arch so far."""
THREAD_REGISTERS = 255
"""32-bit registers of a thread at most. What does not fit goes to memory and back, which takes many times as long."""
MAX_UNITS = 256
"""Multiprocessors of a GPU at most, where scratch depends on them. The largest so far have 160."""
MAX_RESIDENT = 32
"""Programs that share a multiprocessor at most."""
MAX_SUMS, MAX_OPERANDS, MAX_PRODUCTS = (256, 128), (1024, 512), (16_384, 8192)
"""What a thread has of a tile at most: sums, and at a step along K elements of A and B, and products. First where the
matrix unit multiplies, then where it does not, as in full fp32: each product is an instruction of its own there. No
kernel that was timed has more than 128, 640 and 16,384, or 128, 144 and 4,096. Triton and ptxas take less than 20 s of
processor time within these limits. Beyond them they were seen to take up to 53 s by the matrix unit, and more than two
minutes where it waits for a weight to be dequantised. In full fp32 they take 45 s for 8,192 products of 1,024 operands,
42 s for as many of 256 sums, and 40 to 75 s for 16,384. A tile of 256 x 256 in one warp takes a quarter of an hour and
10 GB."""
MAX_PARTIALS = 4096
"""Partial sums that a thread of the last program of a tile adds up, at most: each is loaded and added by instructions
of its own. No kernel that was timed has more, nor more than 32 slices. They take the compiler 10 to 23 s, 34 s where
they are of 64 slices, and a minute with 6,000."""
FIRST_BF16, FIRST_FP8, FIRST_TMA, HOPPER = 80, 89, 90, 90
"""The first compute capabilities with bf16 and TF32 in the matrix unit (Ampere), with fp8 there (Ada), and with the
tensor copy engine (Hopper)."""
FMA_LANES, OTHER_FMA_LANES = {75: 64, 80: 64}, 128
"""FP32 lanes of a multiprocessor by compute capability, and the number for all others (programming guide, arithmetic
throughput)."""
RESIDENT_WARPS, OTHER_RESIDENT_WARPS = {75: 32, 80: 64, 86: 48, 89: 48, 90: 64, 100: 64, 120: 48}, 48
"""Resident warps of a multiprocessor by compute capability, and the number for all others."""
WARP_THREADS = 32
GROUP_WARPS, GROUP_ROWS = 4, 64
"""Warps of a warp group, and rows of the left operand that one instruction of it takes (Hopper's wgmma)."""
MIN_DEPTH = 32
"""Elements of K that one instruction of the matrix unit takes of 8-bit operands, int8 and fp8."""
SHALLOW_DEPTH = 32
"""K up to which one step of a kernel multiplies the whole K: one or two instructions of the matrix unit."""
SKINNY_ROWS = 64
"""Rows of C up to which a GEMM counts as skinny: it is bound by reading B."""
BAND_ROWS = 8
"""`group_m` of menu configs: this many rows of tiles are computed together, so that they share B in L2."""
MAX_SPLITS = 32
"""Slices that K is cut into at most; each slice has at least two steps."""
MAX_STAGES = 8
"""Pipeline stages at most."""
LARGEST_OFFSET = 2**31
"""Triton kernels, and the integers that Inductor passes, use signed 32-bit offsets."""


def shared_bytes(device: Device) -> int:
    """Shared memory of a block, in bytes."""
    return int(device.figures.get("smem_bytes", SHARED_BYTES))


def has_warp_groups(capability: int) -> bool:
    """Whether the matrix unit multiplies tiles of whole warp groups, as data-centre GPUs do from Hopper on."""
    return HOPPER <= capability < 120


def by_warp_groups(left: int, warps: int) -> bool:
    """Whether a tile with `left` rows of its left operand is large enough for the matrix instructions of whole warp
    groups. The caller checks whether the arch and the dtypes have these instructions."""
    return left >= GROUP_ROWS and warps % GROUP_WARPS == 0


def stage_bytes(block: tuple[int, int, int], sizes: tuple[int, int]) -> int:
    """Bytes of one pipeline stage: a tile [m, k] of A and one [k, n] of B. `block`: (m, n, k); `sizes`: bytes of an
    element of A and of B."""
    (m, n, k), (a, b) = block, sizes
    return k * (m * a + n * b)


def item_sizes(a: Operand, b: Operand) -> tuple[int, int]:
    """Bytes of an element of both operands."""
    return ITEM_SIZES[a.dtype], ITEM_SIZES[b.dtype]


def reject_slow_compile(block: tuple[int, int, int], warps: int, by_lanes: bool) -> Rejected | None:
    """Why a tile of `block` (rows, columns, elements of K) takes too long to compile for so many warps, None when it
    does not. `by_lanes`: ordinary instructions multiply it, and not the matrix unit."""
    (m, n, k), threads = block, WARP_THREADS * warps
    parts = (
        (m * n, MAX_SUMS[by_lanes], "keep", "sums"),
        (k * (m + n), MAX_OPERANDS[by_lanes], "load", "operands at a step"),
        (m * n * k, MAX_PRODUCTS[by_lanes], "add", "products at a step"),
    )
    for number, most, does, what in parts:
        if number > most * threads:
            return Rejected(f"a thread would {does} more than {most} {what}, which takes the compiler long")
    return None


def tile_count(m: int, n: int, block: tuple[int, int]) -> int:
    """How many tiles of `block` (rows, columns) cover an [m, n] output."""
    return -(-m // block[0]) * -(-n // block[1])


def filling(tiles: int, programs: int) -> set[int]:
    """The numbers of slices of K with which `tiles` times slices fill `programs`, the number that the multiprocessors
    hold: the largest number that fits, and the largest power of two that fits. 0 if there are more tiles than
    programs."""
    full = programs // tiles
    return {full, 1 << full.bit_length() >> 1}


def splits(tiles: int, programs: int, steps: int, most: int = MAX_SPLITS) -> list[int]:
    """The splits of K, each of 2 or more slices, that fill the multiprocessors once (`filling`), in ascending order.
    Each slice has at least two of the `steps` along K."""
    return [split for split in sorted(filling(tiles, programs)) if 1 < split <= min(steps // 2, most)]


def vector_rows(operand: Operand) -> bool:
    """Whether every row of an operand begins at a multiple of 16 bytes, as the tensor copy engine (TMA) requires."""
    return operand.layout.align * ITEM_SIZES[operand.dtype] >= VECTOR_BYTES
