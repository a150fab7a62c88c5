"""What each backend offers: the kernel names a Config may carry, and the range of each of their parameters.

A table is data from strangers, so a Config is only built from what is listed here. To add a backend or a kernel, add
its Kernel; the generator's candidates, the lowering's renderer and this registry meet in its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class IntRange:
    """Integers from `low` to `high`, both included; `power_of_two` leaves only those."""

    low: int
    high: int
    power_of_two: bool = False

    def __contains__(self, value: object) -> bool:
        if type(value) is not int or not self.low <= value <= self.high:
            return False
        return not self.power_of_two or value & (value - 1) == 0


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a fixed list of words or integers."""

    values: tuple[str | int, ...]

    def __contains__(self, value: object) -> bool:
        return any(value == known and type(value) is type(known) for known in self.values)


Domain = IntRange | OneOf


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a backend: the ops it solves, the device kinds it runs on and the domain of each parameter.

    `cost` orders kernels by what it costs to compile one: a tie between measured times goes to the smaller cost.
    `splits` names the parameters that say into how many parts the sum over K is split; 0 leaves it to the backend.
    """

    backend: str
    name: str
    ops: tuple[str, ...]
    devices: tuple[str, ...]
    cost: int
    params: Mapping[str, Domain] = field(default_factory=dict)
    splits: tuple[str, ...] = ()


_INDUCTOR: Mapping[str, Domain] = {
    "block_m": IntRange(16, 256, True), "block_n": IntRange(16, 256, True), "block_k": IntRange(16, 256, True),
    "group_m": IntRange(1, 16, True), "warps": IntRange(1, 16, True), "stages": IntRange(1, 8),
}  # fmt: skip
_TILES = OneOf((16, 32, 64, 96, 128, 192, 256))
_ALL = (
    # What Inductor's default mode runs on the product when it is left alone: the reference of every measurement.
    Kernel("aten", "default", ("mm", "addmm", "int_mm", "mixed_mm", "bmm", "scaled_mm"), ("cpu", "cuda"), 0),
    # The weight-only product of ATen; bf16 activations, int8 weight, per-channel scale.
    Kernel("aten", "int8pack_mm", ("mixed_mm",), ("cpu",), 1),
    # ATen on operands padded with zeros to multiples of `multiple` elements, where rows start at none of 16 bytes.
    Kernel("aten", "padded", ("mm", "addmm", "int_mm"), ("cuda",), 1, {"multiple": OneOf((8, 16, 64))}),
    # Our own Triton templates, in gemmdb/kernels/triton; docs/kernels.md says what each parameter does. `reduce`: how
    # the partial sums of a split K are summed, by a second kernel or by the last program of each tile.
    Kernel("triton", "tile", ("mm", "addmm", "int_mm", "mixed_mm"), ("cuda",), 1, {
        "block_m": IntRange(16, 256, True), "block_n": IntRange(16, 256, True), "block_k": IntRange(16, 1024, True),
        "group_m": IntRange(1, 16, True), "split_k": IntRange(1, 64), "reduce": OneOf(("none", "kernel", "fixup")),
        "swap": IntRange(0, 1), "load": OneOf(("pointer", "tma")), "dequant": OneOf(("cast", "bits")),
        "warps": IntRange(1, 16, True), "stages": IntRange(1, 8),
    }, splits=("split_k",)),
    Kernel("triton", "persistent", ("mm", "addmm", "int_mm", "mixed_mm"), ("cuda",), 1, {
        "block_m": IntRange(16, 256, True), "block_n": IntRange(16, 256, True), "block_k": IntRange(16, 512, True),
        "group_m": IntRange(1, 16, True), "swap": IntRange(0, 1), "dequant": OneOf(("cast", "bits")),
        "resident": IntRange(1, 8), "warps": IntRange(1, 16, True), "stages": IntRange(1, 8),
    }),
    Kernel("triton", "narrow", ("mm", "addmm", "int_mm", "mixed_mm", "scaled_mm"), ("cuda",), 1, {
        "block_m": IntRange(16, 64, True), "block_n": IntRange(16, 256, True), "block_k": IntRange(16, 1024, True),
        "split_k": IntRange(1, 64), "swap": IntRange(0, 1), "stagger": IntRange(0, 1), "rows": OneOf(("wrap", "mask")),
        "dequant": OneOf(("cast", "bits")), "warps": IntRange(1, 16, True), "stages": IntRange(1, 8),
    }, splits=("split_k",)),
    Kernel("triton", "gemv", ("mm", "addmm", "mixed_mm", "scaled_mm"), ("cuda",), 1, {
        "block_n": IntRange(1, 64, True), "block_k": IntRange(64, 4096, True), "unroll": IntRange(1, 8, True),
        "dequant": OneOf(("cast", "bits")), "warps": IntRange(1, 16, True), "stages": IntRange(1, 8),
    }),
    # Our CUTLASS kernel, in gemmdb/kernels/cutlass. `split_k` 0 leaves the split to stream-K.
    Kernel("cutlass", "gemm", ("mm", "addmm", "int_mm", "mixed_mm"), ("cuda",), 10, {
        "tile_m": _TILES, "tile_n": _TILES, "tile_k": OneOf((32, 64, 128)), "cluster_m": OneOf((1, 2)),
        "cluster_n": OneOf((1, 2)), "schedule": OneOf(("cooperative", "pingpong")), "split_k": IntRange(0, 16),
        "swizzle": IntRange(1, 8, True), "raster": OneOf(("auto", "m", "n")), "swap": IntRange(0, 1),
    }, splits=("split_k",)),
    # Inductor's C++ GEMM template; `auto` blocking is the template's own choice, else register-block counts.
    Kernel("cpp", "packed_gemm", ("mm", "addmm", "int_mm", "mixed_mm"), ("cpu",), 3, {
        "threads_m": IntRange(0, 4096), "threads_n": IntRange(0, 4096), "threads_k": IntRange(0, 4096),
        "blocks_m": IntRange(0, 2**20), "blocks_n": IntRange(0, 2**20), "blocks_k": IntRange(0, 2**20),
    }, splits=("threads_k",)),
    # Inductor's own Triton templates, one fixed choice of them: a tile per program, and persistent programs with TMA.
    Kernel("triton", "inductor_mm", ("mm", "addmm", "int_mm", "scaled_mm"), ("cuda",), 1, _INDUCTOR),
    Kernel("triton", "inductor_persistent_tma", ("mm", "addmm"), ("cuda",), 1, _INDUCTOR),
    # The same of products of batches: a tile of one matrix per program.
    Kernel("triton", "inductor_bmm", ("bmm",), ("cuda",), 1, _INDUCTOR),
    # And of products of fp8 operands with scales, by persistent programs with TMA.
    Kernel("triton", "inductor_scaled_tma", ("scaled_mm",), ("cuda",), 1, _INDUCTOR),
)  # fmt: skip

KERNELS: Mapping[tuple[str, str], Kernel] = {(kernel.backend, kernel.name): kernel for kernel in _ALL}
"""Every kernel by (backend, name)."""

INDUCTOR_ALONE: Mapping[str, str] = {"bmm": "products of batches"}
"""Ops that none of our own kernels solves, in words."""
GPU_ALONE: Mapping[str, str] = {**INDUCTOR_ALONE, "scaled_mm": "products of fp8"}
"""Ops that nothing but ATen solves on a CPU, in words."""
