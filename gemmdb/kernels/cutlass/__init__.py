"""Our CUTLASS kernels, each one CUDA source, for the generator and for Inductor; needs neither CUTLASS nor a GPU to
read. What is said of a config here is that of `gemm`, unless another kernel is named.

Macros before the source say what a kernel is compiled for: integers, and words from the fixed lists here. Sizes,
leading dimensions, the split of K and the order of tiles are arguments, so one compiled kernel serves every problem
with the same dtypes, layouts and epilogue.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gemmdb.kernels.cutlass import int4, int4_stream, scaled_blocks
from gemmdb.kernels.cutlass.rules import rejection
from gemmdb.kernels.kernel import ConfigLike, IntRange, Kernel, OneOf, always
from gemmdb.key.problem import Problem

TYPES = {
    "bf16": "cutlass::bfloat16_t", "fp16": "cutlass::half_t", "fp32": "float", "int8": "int8_t", "uint8": "uint8_t",
    "int32": "int32_t",
}  # fmt: skip
"""CUTLASS's name of each dtype."""
BIASES = {None: 0, "1d": 1, "column": 2, "full": 3}
"""The value of GEMMDB_BIAS for each kind of bias."""
RASTERS = {"auto": 0, "m": 1, "n": 2}
"""The value of `Order.raster` for each value of the parameter."""
FLAGS = (
    "-std=c++17", "-O3", "-w", "-DNDEBUG", "--expt-relaxed-constexpr", "-DCUTLASS_ENABLE_TENSOR_CORE_MMA=1",
    "-gencode=arch=compute_90a,code=sm_90a",
)  # fmt: skip
"""nvcc's options. The `a` in `sm_90a` enables the instructions that only Hopper has."""
_INT4 = {"int4": int4.macros, "int4_stream": int4_stream.macros}
NAMES = ("gemm", "scaled_blocks", *_INT4)
"""The kernels, by the names of their sources."""
EQUIVALENT = {"482ad56a9acc89e2": "06b4a8a9425a1335"}
"""A former digest with the later one, so that rows of the former stay valid. Since then a kernel may also scale the
rows. On the GPU, all others run the same code."""


@functools.cache
def source(kernel: str = "gemm") -> str:
    """The CUDA source of a kernel, without its macros and without an entry point."""
    from importlib import resources  # Imported where it is used: it takes longer than all of gemmdb's own modules.

    return (resources.files(__name__) / f"{kernel}.cu").read_text()


@functools.cache
def digest(kernel: str) -> str:
    """16 hexadecimal digits that change with the source of a kernel. Rows of the kernel stay valid while they do not
    change."""
    return hashlib.sha256(f"{kernel}\n{source(kernel)}".encode()).hexdigest()[:16]


def sources() -> str:
    """The digests of all kernels' sources: what an archive is compiled from."""
    return " ".join(map(digest, NAMES))


@dataclass(frozen=True)
class Vectors:
    """The dtypes of what a GEMM is fused with: a scale per column, a scale per row, a bias; empty without one. A
    bias that is not in the problem has one number per column."""

    columns: str = ""
    rows: str = ""
    bias: str = ""


def macros(config: ConfigLike, problem: Problem, vectors: Vectors | None = None) -> dict[str, int | str]:
    """The macros for a legal config on a problem, by name without GEMMDB_.

    Only the part of the problem that `inside` keeps counts. `vectors`: of a problem with a scale; by default a scale of
    the columns, in the dtype of a bf16 or fp16 output, and in fp32 for other outputs.
    """
    if config.kernel == "scaled_blocks":
        return scaled_blocks.macros(config)
    if config.kernel in _INT4:
        return _INT4[config.kernel](config, problem)
    problem, value, swap = inside(problem), config.values, config.values["swap"] == 1
    # Each pair is the value for A or the output's rows, then the value for B or its columns.
    along_k = problem.a.row_major, problem.b.layout.order.startswith("col")
    pairs = (
        (TYPES[problem.a.dtype], TYPES[problem.b.dtype]),
        (value["tile_m"], value["tile_n"]),
        (value["cluster_m"], value["cluster_n"]),
        (int(along_k[0]), int(along_k[1])),
    )
    types, tile, cluster, along = (pair[::-1] if swap else pair for pair in pairs)
    scaled = problem.fusion == "scale"
    if vectors is None or not scaled:
        vectors = Vectors(scale_dtype(problem) if scaled else "")
    bare = problem.spec.integer and not scaled
    bias = problem.bias
    kind = bias.kind if bias else "1d" if vectors.bias else None
    return {
        "LEFT": types[0], "RIGHT": types[1], "OUT": TYPES[problem.out],
        "ACCUMULATOR": TYPES["int32" if problem.spec.integer else "fp32"],
        "COMPUTE": TYPES["int32" if bare else "fp32"],
        "TILE_ROWS": tile[0], "TILE_COLUMNS": tile[1], "TILE_DEPTH": value["tile_k"],
        "CLUSTER_ROWS": cluster[0], "CLUSTER_COLUMNS": cluster[1],
        "LEFT_ALONG_DEPTH": along[0], "RIGHT_ALONG_DEPTH": along[1], "SWAP": int(swap),
        "COOPERATIVE": int(value["schedule"] == "cooperative"), "STREAM_K": int(streams(config)),
        "SCALE": int(bool(vectors.columns)), "SCALE_TYPE": TYPES[vectors.columns or scale_dtype(problem)],
        "ROW_SCALE": int(bool(vectors.rows)), "ROW_SCALE_TYPE": TYPES[vectors.rows or scale_dtype(problem)],
        "BIAS": BIASES[kind], "BIAS_TYPE": TYPES[bias.dtype if bias else vectors.bias or problem.out],
    }  # fmt: skip


def inside(problem: Problem) -> Problem:
    """The part of a problem that one kernel solves: all but a pointwise function and the bias of a mixed_mm. These
    are a separate kernel, in Inductor and in measurements."""
    return replace(
        problem,
        fusion="scale" if problem.fusion == "scale" else "none",
        bias=None if problem.spec.dequantises else problem.bias,
    )


def outside(problem: Problem) -> Problem | None:
    """The part that is left to do on the finished output, None if nothing is left."""
    bias = problem.bias if problem.spec.dequantises else None
    if problem.epilogue is None and bias is None:
        return None
    op = problem.spec.unbiased or problem.op
    return replace(problem, op=op, bias=bias, fusion="none" if problem.fusion == "scale" else problem.fusion)


def product_dtype(problem: Problem) -> str:
    """The dtype that a kernel stores, before what is `outside` of it."""
    return problem.out if problem.scaled else problem.a.dtype


def streams(config: ConfigLike) -> bool:
    """Whether the config uses the stream-K tile scheduler, which also does a fixed split of K. The others add the parts
    of a split within a cluster, without a workspace."""
    return config.kernel == "gemm" and config.values["split_k"] != 1


def scale_dtype(problem: Problem) -> str:
    """The dtype of the scale that a problem is measured with."""
    return problem.out if problem.out in ("bf16", "fp16") else "fp32"


def order(config: ConfigLike) -> tuple[int, int, int]:
    """(split, swizzle, raster): the arguments of a config, which need no compiling. Those of `scaled_blocks` are the
    steps between its scales, which its operands say: zeros here. Those of int4 weights have none: zeros."""
    if config.kernel != "gemm":
        return 0, 0, 0
    value = config.values
    return int(value["split_k"]), int(value["swizzle"]), RASTERS[str(value["raster"])]


def workspace_bound(config: ConfigLike, problem: Problem) -> int:
    """The most bytes of scratch that a config needs on a problem: the partial sums of the split tiles, and two counters
    for each. CUTLASS rounds the tiles up to whole clusters and bands."""
    if not streams(config):
        return 0
    value = config.values
    tile, band = [int(value[name]) for name in ("tile_m", "tile_n")], int(value["swizzle"])
    counts = []
    for size, block, cluster in zip((problem.m, problem.n), tile, ("cluster_m", "cluster_n"), strict=True):
        whole = band * int(value[cluster])
        counts.append(math.ceil(math.ceil(size / block) / whole) * whole)
    tiles = math.prod(counts)
    return tiles * math.prod(tile) * 4 + tiles * 8 + 2 * 128


def render(config: ConfigLike, problem: Problem, vectors: Vectors | None = None) -> str:
    """The source of the kernel for `config` on `problem`, without an entry point; `vectors` as in `macros`."""
    return rendered(macros(config, problem, vectors))


def rendered(values: Mapping[str, int | str]) -> str:
    """The source with these macros."""
    text = source(next((name for name in NAMES if name.upper() in values), "gemm"))
    return "".join(f"#define GEMMDB_{name} {value}\n" for name, value in values.items()) + text


def headers() -> Path | None:
    """The folder of CUTLASS's headers in the nvidia-cutlass package, None without it. The package is not imported: that
    needs more of CUDA than the headers do."""
    from importlib import metadata

    try:
        found = Path(str(metadata.distribution("nvidia-cutlass").locate_file("cutlass_library/source/include")))
    except metadata.PackageNotFoundError:
        return None
    return found.resolve() if (found / "cutlass" / "cutlass.h").is_file() else None


def compiler() -> str | None:
    """The nvcc to compile with. It is searched in the same places as in Inductor: $CUDACXX, $CUDA_HOME/bin, $PATH; None
    without one."""
    home = os.environ.get("CUDA_HOME", "")
    candidates = (os.environ.get("CUDACXX", ""), str(Path(home, "bin", "nvcc")) if home else "", "nvcc")
    return next((found for name in candidates if name and (found := shutil.which(name))), None)


_TILES = OneOf((16, 32, 64, 96, 128, 192, 256))
KERNEL = Kernel(
    "cutlass", "gemm", ("mm", "addmm", "int_mm", "mixed_mm"), ("cuda",), 10, {
        "tile_m": _TILES, "tile_n": _TILES, "tile_k": OneOf((32, 64, 128)), "cluster_m": OneOf((1, 2)),
        "cluster_n": OneOf((1, 2)), "schedule": OneOf(("cooperative", "pingpong")), "split_k": IntRange(0, 16),
        "swizzle": IntRange(1, 8, True), "raster": OneOf(("auto", "m", "n")), "swap": IntRange(0, 1),
    },
    splits=("split_k",), rejection=rejection, maps=always, digest=functools.partial(digest, "gemm"),
    equivalent=EQUIVALENT,
)  # fmt: skip
"""`split_k` 0 leaves the split to stream-K."""
_SIDES, _CLUSTER = OneOf((16, 32, 48, 64, 96, 112, 128, 144, 160, 192, 256)), OneOf((1, 2))
SCALED_BLOCKS = Kernel(
    "cutlass", "scaled_blocks", ("scaled_mm",), ("cuda",), 10, {
        "tile_m": _SIDES, "tile_n": _SIDES, "cluster_m": _CLUSTER, "cluster_n": _CLUSTER,
        "split_k": OneOf((1, 2, 4, 8)), "swap": IntRange(0, 1),
    },
    splits=("split_k",), rejection=scaled_blocks.rejection, maps=always,
    digest=functools.partial(digest, "scaled_blocks"), equivalent={"f5cda64fefe16d3d": "ba4ca0150216178f"},
)  # fmt: skip
"""Every Hopper GPU runs clusters of 8 blocks, of which each sums a part of K. The machine code of the former digest is
the same: an assertion came, and code that no config compiles went."""
INT4 = Kernel(
    "cutlass", "int4", ("mixed_mm",), ("cuda",), 10, {
        "tile_m": IntRange(8, 256), "tile_n": OneOf((64, 128, 192, 256)), "tile_k": OneOf((64, 128)),
        "groups": IntRange(1, 4), "split_k": OneOf((1, 2, 4, 8)),
    },
    splits=("split_k",), rejection=int4.rejection, maps=always, digest=functools.partial(digest, "int4"), int4=True,
    equivalent={"68bec5c9b8ca8f65": "b039d8473677c410"},
)  # fmt: skip
"""`groups`: of warps that multiply."""
INT4_STREAM = Kernel(
    "cutlass", "int4_stream", ("mixed_mm",), ("cuda",), 10, {
        "tile_m": OneOf((8, 16)), "tile_n": OneOf((16, 32, 64, 128)), "rows": OneOf((16, 32, 64)),
        "warps": OneOf((4, 8)), "split_k": IntRange(1, 8),
    },
    splits=("split_k",), rejection=int4_stream.rejection, maps=always, digest=functools.partial(digest, "int4_stream"),
    int4=True, equivalent={"52ecb88f0cfbfb78": "6f5f03445c831b9c"},
)  # fmt: skip
"""`rows`: those of the weight that a warp multiplies. The former digest differs in comments."""
