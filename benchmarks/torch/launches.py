"""The work of `host`: kinds of GEMMs, each compiled as a short and a long chain, and the host's time between them.

Each chain has a code object of its own. torch.compile counts compiles per code object, and beyond its recompile limit
it runs the program without compiling it; functions without a source file share the code object of a wrapper.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch._inductor import config as inductor_config
from torch.nn import functional as F

import gemmdb.inductor
from benchmarks.torch.block_times import captured, replayed
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import one_line

FEW, MANY, CALLS = 8, 24, 10
"""GEMMs of a short and a long chain, and calls per sample. The launches of all calls fit in the queue of a GPU."""
Form = Callable[[Tensor, Tensor, Tensor], Tensor]
"""One GEMM of a chain: of the activation, the weight, and a vector over the columns."""
Choice = Config | Callable[[Problem], Config] | None
"""The config of all GEMMs, or of each by its problem. None: Inductor's default mode."""


class Unserved(Exception):
    """The config of a kind was not served. The text says what happened instead."""


def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Without an epilogue."""
    return F.linear(x, w)


def biased(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """With a bias."""
    return F.linear(x, w, b)


def clipped(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """With an epilogue that Inductor fuses."""
    return F.linear(x, w).relu()


def scaled(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """With a weight in int8 that is cast, and scales of the columns."""
    return F.linear(x, w.to(x.dtype)) * b


def batched(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Several GEMMs in one call."""
    return torch.bmm(x, w)


@dataclass(frozen=True)
class Kind:
    """A program and the config of its GEMMs. `sizes`: M, N and K, where N and K are equal. `against`: the name of the
    kind that runs ATen in the same program, None for that itself."""

    form: Form
    sizes: tuple[int, int, int] = (16, 256, 256)
    choice: Choice = None
    against: str | None = None

    def inputs(self, device: str) -> tuple[Tensor, Tensor, Tensor]:
        """Random operands."""
        m, n, k = self.sizes
        batch = (4,) if self.form is batched else ()
        mixed = self.form is scaled
        dtype = torch.float16 if mixed else torch.bfloat16
        x = torch.randn(*batch, m, k, device=device).to(dtype)
        w = (torch.randn(*batch, n, k, device=device) / k**0.5).to(dtype)
        if mixed:
            w = torch.randint(-9, 9, (n, k), device=device, dtype=torch.int8)
        return x, w, torch.full((n,), 0.001, device=device).to(dtype)


@dataclass(frozen=True)
class Chain:
    """A compiled kind: calls of its short and its long chain, and the text of the config that they run."""

    few: Callable[[], Tensor]
    many: Callable[[], Tensor]
    config: str

    def sample_us(self) -> float:
        """Microseconds of the host per GEMM."""
        return (host_us(self.many) - host_us(self.few)) / (MANY - FEW)

    def gpu_us(self) -> float:
        """Microseconds of the GPU per GEMM, in CUDA graphs with everything in the cache."""
        with torch.no_grad():
            few, many = (replayed(captured(call)[0]) for call in (self.few, self.many))
        return (many - few) / (MANY - FEW)


def kinds(device: str) -> dict[str, Kind]:
    """All kinds by name: ATen's, and on a GPU those of our kernels and of libraries."""
    small, odd, row = (16, 256, 256), (16, 250, 250), (1, 256, 256)
    aten = {
        "aten mm": Kind(plain), "aten addmm": Kind(biased), "aten mm+relu": Kind(clipped),
        "aten odd mm": Kind(plain, odd), "aten mm of a row": Kind(plain, row),
        "aten cast+mm+scale": Kind(scaled), "aten bmm": Kind(batched),
        "aten forced": Kind(plain, small, ATEN, "aten mm"),
    }  # fmt: skip
    if device == "cpu":
        return aten
    inductor, inductor_tma = _inductor("inductor_mm", 16), _inductor("inductor_persistent_tma", 64)
    persistent = _triton("persistent", block_m=64, resident=1, dequant="cast", swap=0, group_m=8)
    narrow = _triton("narrow", rows="mask", split_k=2, stagger=1, dequant="cast", swap=0)
    batch = _triton("batch", group_m=8, swap=0, split_k=1)
    gemv = Config.of("triton", "gemv", block_n=8, block_k=256, unroll=1, dequant="cast", warps=4, stages=3)
    cutlass = Config.of(
        "cutlass", "gemm", tile_m=64, tile_n=64, tile_k=128, cluster_m=1, cluster_n=1, schedule="pingpong", split_k=1,
        swizzle=1, raster="auto", swap=1,
    )  # fmt: skip
    two, counted = _tile(split_k=2, reduce="kernel"), _tile(split_k=2, reduce="fixup")
    return aten | {
        "tile": Kind(plain, small, _tile(), "aten mm"),
        "tile addmm": Kind(biased, small, _tile(), "aten addmm"),
        "tile+relu": Kind(clipped, small, _tile(), "aten mm+relu"),
        "tile int8 weight": Kind(scaled, small, _tile(), "aten cast+mm+scale"),
        "tile tma": Kind(plain, small, _tile(load="tma", block_m=64), "aten mm"),
        "tile split kernel": Kind(plain, small, two, "aten mm"),
        "tile split kernel+relu": Kind(clipped, small, two, "aten mm+relu"),
        "tile split fixup": Kind(plain, small, counted, "aten mm"),
        "persistent": Kind(plain, small, persistent, "aten mm"),
        "narrow split": Kind(plain, small, narrow, "aten mm"),
        "gemv": Kind(plain, row, gemv, "aten mm of a row"),
        "batch": Kind(batched, small, batch, "aten bmm"),
        "padded": Kind(plain, odd, Config.of("aten", "padded", multiple=64), "aten odd mm"),
        "inductor mm": Kind(plain, small, inductor, "aten mm"),
        "inductor addmm": Kind(biased, small, inductor, "aten addmm"),
        "inductor tma": Kind(plain, small, inductor_tma, "aten mm"),
        "cutlass": Kind(plain, (64, 256, 256), cutlass, "aten mm"),
        "cublaslt": Kind(plain, small, algorithm, "aten mm"),
        "cublaslt addmm": Kind(biased, small, algorithm, "aten addmm"),
        "cublaslt split": Kind(plain, splitting := split_sizes(), split_algorithm, "aten mm, split"),
        "aten mm, split": Kind(plain, splitting),
    }  # fmt: skip


def _triton(kernel: str, **values: str | int) -> Config:
    small: dict[str, str | int] = {"block_m": 16, "block_n": 64, "block_k": 64, "warps": 4, "stages": 3}
    return Config.of("triton", kernel, **{**small, **values})


def _tile(**values: str | int) -> Config:
    base: dict[str, str | int] = {"split_k": 1, "reduce": "none", "load": "pointer", "dequant": "cast", "swap": 0}
    return _triton("tile", group_m=8, **{**base, **values})


def _inductor(kernel: str, block_m: int) -> Config:
    return _triton(kernel, block_m=block_m, group_m=8)


def algorithm(problem: Problem) -> Config:
    """The first algorithm of cuBLASLt's heuristic that does not split K. Raises Unserved without any."""
    whole = (config for config in _proposed(problem) if config.values["split_k"] == 1)
    found = next(whole, None)
    if found is None:
        raise Unserved("cuBLASLt proposes no algorithm")
    return found


def split_algorithm(problem: Problem) -> Config:
    """The first algorithm that splits K, which needs a workspace; without any, the first one with K in two parts."""
    for config in _proposed(problem):
        if int(config.values["split_k"]) > 1:
            return config
    return Config.of("cublaslt", "matmul", **{**algorithm(problem).values, "split_k": 2, "reduction": 2})


def load_library(device: str) -> None:
    """Have torch load its library for GEMMs."""
    torch.mm(*(torch.ones(16, 16, device=device) for _ in range(2)))


def split_sizes() -> tuple[int, int, int]:
    """Sizes of a GEMM in which ATen splits K: cuBLAS runs what its heuristic names first. Without any, the last ones
    that were tried."""
    if torch.cuda.is_available():
        load_library("cuda")
    sizes = (0, 0, 0)
    for wide, rows in product((1024, 1536, 2048, 3072, 4096), (16, 32, 64)):
        sizes = rows, wide, wide
        named = _proposed(Problem.gemm("mm", m=rows, n=wide, k=wide))
        if named and int(named[0].values["split_k"]) > 1:
            break
    return sizes


def _proposed(problem: Problem) -> list[Config]:
    from gemmdb.generators.measure.cuda import cublaslt

    return cublaslt.proposed(replace(problem, fusion="none"), 64)


def compiled(
    kinds: Mapping[str, Kind], device: str, wrapper: str = "python"
) -> tuple[dict[str, Chain], dict[str, str]]:
    """The compiled kinds, and the reasons why others failed, by name. `wrapper`: `python`, or `cpp` for Inductor's C++
    wrapper."""
    load_library(device)
    gemmdb.inductor.disable()
    chains: dict[str, Chain] = {}
    failed: dict[str, str] = {}
    # A padding of Inductor's own would be another program.
    with inductor_config.patch(shape_padding=False, fx_graph_cache=False, cpp_wrapper=wrapper == "cpp"):
        for name, kind in kinds.items():
            try:
                inputs = kind.inputs(device)
                few, config = _compiled(kind, FEW, inputs)
                many, _ = _compiled(kind, MANY, inputs)
                chains[name] = Chain(few, many, config)
            except Exception as error:
                failed[name] = one_line(f"{type(error).__name__}: {error}")
    return chains, failed


def _compiled(kind: Kind, count: int, inputs: tuple[Tensor, Tensor, Tensor]) -> tuple[Callable[[], Tensor], str]:
    """A call of a compiled chain, and the text of its config, empty in default mode. Raises Unserved."""
    # A whole graph, so that nothing runs without being compiled.
    run = torch.compile(chain(kind.form, count), dynamic=False, fullgraph=True)

    def call() -> Tensor:
        return torch.as_tensor(run(*inputs))

    with torch.no_grad():
        if kind.choice is None:
            call()
            return call, ""
        wanted: set[str] = set()

        def choose(problem: Problem) -> Config:
            config = kind.choice(problem) if callable(kind.choice) else kind.choice
            assert config is not None
            wanted.add(config.text)
            return config

        gemmdb.inductor.reset_stats()
        with gemmdb.inductor.force(choose):
            call()
    return call, served(gemmdb.inductor.stats(), wanted, count)


def served(stats: Mapping[str, Any], wanted: set[str], count: int) -> str:
    """The text of the one config that all `count` GEMMs run. Raises Unserved if they run anything but `wanted`."""
    products = stats["products"]
    found = {one["config"] for one in products}
    if found == wanted and len(found) == 1 and sum(one["count"] for one in products) == count:
        return str(found.pop())
    why = [one["note"] for one in products if one["note"]] + list(stats["errors"]) + list(stats["uncovered"])
    seen = sum(one["count"] for one in products)
    raise Unserved(f"{seen} of {count} GEMMs were seen, with {sorted(found)}: {'; '.join(why) or 'no reason is known'}")


def chain(form: Form, count: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A function of `count` GEMMs, each on the result of the one before. Its code object is its own."""

    def run(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        for _ in range(count):
            x = form(x, w, b)
        return x

    return FunctionType(run.__code__.replace(), run.__globals__, run.__name__, None, run.__closure__)


def host_us(call: Callable[[], object]) -> float:
    """Microseconds of the host for one call, the mean of CALLS, which wait for nothing."""
    collected = gc.isenabled()
    gc.disable()
    try:
        with torch.no_grad():
            _wait()
            call()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            return (time.perf_counter() - start) / CALLS * 1e6
    finally:
        if collected:
            gc.enable()


def _wait() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
