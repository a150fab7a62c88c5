"""Candidates as calls: kernels loaded, bound to a problem's tensors, ready for capture."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from gemmdb.errors import InputError
from gemmdb.generators.measure.cuda import cublaslt, elementwise, emitted
from gemmdb.generators.measure.cuda.artifacts import Library, generated
from gemmdb.generators.measure.cuda.compilers import compile_unit, load_library
from gemmdb.generators.measure.cuda.render import Launch, Plan, Unit, plan
from gemmdb.generators.measure.operands import DTYPES
from gemmdb.generators.measure.program import ALLOCATES, EXTRA_INPUTS, SPELLINGS
from gemmdb.kernels import cutlass
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import EMITTED

Tensors = dict[str, torch.Tensor]
Call = Callable[[int], torch.Tensor | None]
"""Run a candidate on the copy with that number. Returns the output if it is not written into that copy."""


def bind(problem: Problem, config: Config, copies: Sequence[Tensors]) -> tuple[Call, float]:
    """Return a config bound to each copy of the operands, and the seconds that loading it took. Raises if that
    fails."""
    if generated(problem, config):
        return emitted.bind(problem, config, copies)
    if config.backend == "triton":
        return ours(problem, copies, plan(problem, config))
    if config.backend == "cutlass":
        return _cutlass(problem, config, copies)
    if config.backend == "cublaslt":
        return _cublaslt(problem, config, copies)
    raise InputError(f"{config.name} is not measured on a GPU")


def ours(problem: Problem, copies: Sequence[Tensors], made: Plan) -> tuple[Call, float]:
    """Return a plan bound to each copy of the operands, and the seconds that loading its kernels took. Raises
    RuntimeError if a kernel does not compile."""
    acc = torch.int32 if problem.spec.integer else torch.float32
    seconds = sum(_kernel(launch.unit)[1] for launch in made.launches)
    # One for all copies, as Inductor uses one workspace for all kernels of a graph: 20 for each of a hundred candidates
    # would not fit.
    scratch = {
        "partials": torch.empty(max(made.partials, 1), dtype=acc, device="cuda"),
        "counters": torch.zeros(max(made.counters, 1), dtype=torch.int32, device="cuda"),
    }
    steps = [[launcher(launch, {**one, **scratch}, _sizes(problem, one)) for launch in made.launches] for one in copies]

    def call(index: int) -> None:
        for step in steps[index]:
            step()

    return call, seconds


def reference(problem: Problem, copies: Sequence[Tensors]) -> tuple[Call, float, str]:
    """Return ATen bound to each copy of the operands, the seconds that loading it took, and EMITTED if it is default
    mode's code."""
    if emitted.ready(problem, ATEN):
        with contextlib.suppress(Exception):  # Our own kernels around the GEMM do nearly as well.
            return (*emitted.bind(problem, ATEN, copies), EMITTED)
    return (*aten(problem, copies), "")


def aten(problem: Problem, copies: Sequence[Tensors]) -> tuple[Call, float]:
    """Return the reference bound to each copy of the operands; there is nothing to load. Our kernels replace default
    mode's kernels around the GEMM: without reads they are as fast, but an exact GELU takes them up to half as long
    again."""
    first, last = elementwise.around(problem)
    if problem.op in ALLOCATES or (problem.int4 is not None and problem.int4.inner):
        calls = [_allocating_call(problem, names, last) for names in copies]
    else:
        calls = [_aten_call(problem, names, first, last) for names in copies]
    return lambda index: calls[index](), 0.0


def _aten_call(
    problem: Problem, names: Tensors, first: Launch | None, last: Launch | None
) -> Callable[[], torch.Tensor | None]:
    """Return nearly what Inductor's default mode does: one ATen call, with a cast of the weight before it and a
    pointwise kernel after it if the problem needs them."""
    before, after, weight, product = [], [], names["B"], names["out"]
    if first is not None:
        dtype = DTYPES[problem.a.dtype]
        if problem.int4 is not None:
            sizes, turned = (problem.k, problem.n), not problem.int4.along_n
            weight = torch.empty(sizes[::-1] if turned else sizes, dtype=dtype, device="cuda")
            weight = weight.t() if turned else weight
        else:
            weight = torch.empty_like(weight, dtype=dtype)
        names["cast"] = weight
        before = [launcher(first, names, {"elements": problem.n * problem.k})]
        if problem.constant:  # Freezing computes the weight once.
            before.pop()()
    if last is not None:
        after = [_finish(problem, names, elementwise.product_dtype(problem), last)]
        product = names["product"]
    multiply = SPELLINGS[problem.op]
    more = [names[name] for name in EXTRA_INPUTS if name in names]
    # The kernel that follows adds the bias of a dequantised GEMM, after the scale.
    bias = None if problem.spec.dequantises else names.get("bias")

    def call() -> None:
        for step in before:
            step()
        multiply(problem, names["A"], weight, more, bias, out=product)
        for step in after:
            step()

    return call


def _allocating_call(problem: Problem, names: Tensors, last: Launch | None) -> Callable[[], torch.Tensor | None]:
    """As `_aten_call`, for ops where ATen allocates the result, which costs nothing when a graph replays."""
    more, own = [names[name] for name in EXTRA_INPUTS if name in names], problem.int4

    def call() -> torch.Tensor | None:
        product: torch.Tensor
        if own is not None:
            product = torch.ops.aten._weight_int4pack_mm(names["A"], names["B"], own.size, names["scale"])
        else:
            product = SPELLINGS[problem.op](problem, names["A"], names["B"], more, None)
        if last is None:
            return product
        launcher(last, {**names, "product": product}, _sizes(problem, names))()
        return None

    return call


def _finish(problem: Problem, names: Tensors, dtype: str, launch: Launch) -> Callable[[], None]:
    """Return the kernel that finishes a GEMM's result in `dtype`, which becomes the tensor `product`, even if it is
    kept. Candidates share it: twenty for each of a hundred would not fit."""
    product = names.get("product")
    if product is None or product.dtype is not DTYPES[dtype]:
        product = names["product"] = torch.empty(problem.shapes[2], dtype=DTYPES[dtype], device="cuda")
    # Another candidate's result must not pass for this one's.
    product.fill_(float("nan") if product.is_floating_point() else torch.iinfo(product.dtype).min)
    return launcher(launch, names, _sizes(problem, names))


def _sizes(problem: Problem, names: Tensors) -> dict[str, int]:
    # The kernel that finishes a batch treats it as one matrix with all rows.
    sizes = {"M": problem.batch * problem.m, "N": problem.n, "K": problem.k}
    leading = {"lda": max(names["A"].stride()), "ldb": max(names["B"].stride()[-2:]), "apart": names["B"].stride(0)}
    return {**sizes, **{f"arg_{name}": size for name, size in sizes.items()}, **leading}


def launcher(launch: Launch, names: Tensors, sizes: dict[str, int]) -> Callable[[], None]:
    """Return one launch bound to tensors and sizes by argument name. Raises RuntimeError for an unaligned tensor."""
    kernel, _ = _kernel(launch.unit)
    arguments = [names[n] if t.startswith("*") else sizes[n] for n, t in launch.unit.args]
    for (name, _), argument in zip(launch.unit.args, arguments, strict=True):
        if isinstance(argument, torch.Tensor) and argument.data_ptr() % 16:
            raise RuntimeError(f"{name} is not 16-byte aligned")
    programs, *others = launch.grid
    if launch.resident:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        programs = min(programs, launch.resident * int(properties.multi_processor_count))
    run = kernel[(programs, *others)]
    return lambda: run(*arguments)


@functools.cache
def _kernel(unit: Unit) -> tuple[Any, float]:
    import triton

    triton.set_allocator(lambda size, _alignment, _stream: _scratch(size))
    major, minor = torch.cuda.get_device_capability()
    done = compile_unit(unit, major * 10 + minor)
    if done.failure:
        raise RuntimeError(done.failure)
    return done.kernel, done.seconds


@functools.cache
def _scratch(size: int) -> torch.Tensor:
    # The next launch no longer needs the tensor maps of this one, and graphs need a fixed address.
    return torch.empty(size, dtype=torch.int8, device="cuda")


def _cublaslt(problem: Problem, config: Config, copies: Sequence[Tensors]) -> tuple[Call, float]:
    """As `bind`. There is nothing to load. Raises RuntimeError if cuBLASLt does not support the algorithm here."""
    _, last = elementwise.around(problem)
    dtype = elementwise.product_dtype(problem)
    after = [] if last is None else [_finish(problem, tensors, dtype, last) for tensors in copies]
    multiply = cublaslt.bound(problem, config, copies, "product" if after else "out")

    def call(index: int) -> None:
        multiply(index)
        if after:
            after[index]()

    return call, 0.0


_CUTLASS_OPERANDS = {
    "gemm": ("A", "B", "scale", "bias", ""), "scaled_blocks": ("A", "B", "scale_b", "", "scale_a"),
    "int4": ("A", "B", "scale", "", "zeros"), "int4_stream": ("A", "B", "scale", "", "zeros"),
}  # fmt: skip
"""The tensors that a kernel reads: A, B, the scale of the columns, a bias, the scale of the rows, or zero points."""
_CUTLASS_FAILURES = {
    1: "a tensor is not 16-byte aligned",
    2: "CUTLASS cannot implement the problem",
    3: "the workspace is too small",
    4: "CUTLASS could not initialise the kernel",
    5: "the kernel could not be launched",
}
"""Messages for the kernel's return codes."""


def _cutlass(problem: Problem, config: Config, copies: Sequence[Tensors]) -> tuple[Call, float]:
    """As `bind`. Raises RuntimeError when the library cannot be built or the kernel cannot run on the problem."""
    start = time.perf_counter()
    artifact = Library.of(problem, config)
    major, minor = torch.cuda.get_device_capability()
    failure = artifact.build(major * 10 + minor).failure
    if failure:
        raise RuntimeError(failure)
    library = load_library(artifact.path)
    seconds = time.perf_counter() - start
    sizes = (problem.m, problem.n, problem.k, *_leading(problem, copies[0]))
    order = _steps(copies[0]) if config.kernel == "scaled_blocks" else cutlass.order(config)
    # One for all copies: they follow each other on one stream, and each run begins by zeroing its counters.
    workspace = torch.empty(max(library.gemmdb_workspace(*sizes, *order), 1), dtype=torch.uint8, device="cuda")
    rest, dtype = cutlass.outside(problem), cutlass.product_dtype(problem)
    after = []
    if rest is not None:
        launch = elementwise.after(rest, dtype)
        after = [_finish(rest, tensors, dtype, launch) for tensors in copies]
    names = (*_CUTLASS_OPERANDS[config.kernel], "out" if rest is None else "product")
    tensors = [[copy.get(name) for name in names] for copy in copies]

    def call(index: int) -> None:
        pointers = (tensor.data_ptr() if tensor is not None else None for tensor in tensors[index])
        scratch = workspace.data_ptr(), workspace.nbytes
        code = library.gemmdb_gemm(*pointers, *sizes, *order, *scratch, torch.cuda.current_stream().cuda_stream)
        if code:
            raise RuntimeError(_CUTLASS_FAILURES.get(code, f"the kernel returned {code}"))
        if after:
            after[index]()

    return call, seconds


def _steps(tensors: Tensors) -> tuple[int, int, int]:
    """Return the elements from the block scales of one step along K to the next for A, along N for B, and nothing."""
    return tensors["scale_a"].stride(1), tensors["scale_b"].stride(1), 0


def _leading(problem: Problem, tensors: Tensors) -> Iterator[int]:
    """Yield the leading strides of A and B, that of a packed weight in bytes."""
    if problem.int4 is not None:
        yield int(tensors["A"].stride(0)) if problem.m > 1 else problem.k
        yield problem.k // 2
        return
    for operand, matrix in ((problem.a, tensors["A"]), (problem.b, tensors["B"])):
        outer, inner = (0, 1) if operand.layout.order.startswith("row") else (1, 0)
        # A single row's stride is never used and may be anything, but a tensor map needs an aligned one.
        yield int(matrix.stride(outer) if matrix.shape[outer] > 1 else matrix.shape[inner])
