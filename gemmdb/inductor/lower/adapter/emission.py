"""Generate Inductor's output code: for a whole graph without a GPU, and for a small graph in the middle of a compile.

The small graph comes from a graph that has been through Inductor's passes. Its kernels compile in Inductor's worker
pool, so several graphs can compile in parallel. The compile in progress is unaffected.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch._inductor.compile_fx as entry
from torch._dynamo.utils import counters
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._inductor import metrics
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import CodeCacheFuture
from torch._inductor.debug import DebugContext
from torch._inductor.fx_passes import joint_graph
from torch._inductor.graph import GraphLowering
from torch._inductor.triton_bundler import TritonBundler
from torch._inductor.virtualized import V
from torch._subclasses import fake_tensor
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import _disable_current_modes

from gemmdb.cublaslt import matmul
from gemmdb.inductor.lower.adapter import codegen, cublaslt
from gemmdb.inductor.lower.adapter.state import replaced
from gemmdb.phases import PHASES

Function = Callable[[list[Any]], Sequence[Any]]
"""The function of an output code: takes the list of the graph's inputs, empties it, and returns the outputs."""


class _Generated(BaseException):
    """Stops a compile and carries its output code. No handler on the way catches it."""

    def __init__(self, source: str, seen: Any) -> None:
        self.source, self.seen = source, seen


def output_code(graph: Any, inputs: Sequence[Any], look: Callable[[], Any]) -> tuple[str, Any]:
    """Compile `graph` on (fake) `inputs`. Return the output code, and the result of `look` once the code exists. Runs
    nothing and compiles no kernel. Inductor's exceptions pass through."""
    # With its cache, Inductor may generate no code. With padding on, it would benchmark GEMMs.
    patches = {"fx_graph_cache": False, "shape_padding": False}

    def stop(self: Any) -> Any:
        code = self.codegen()[0]
        raise _Generated(code.value, look())

    with inductor_config.patch(patches), replaced(GraphLowering, "compile_to_module", stop):
        try:
            entry.compile_fx(graph, inputs)
        except _Generated as generated:
            return generated.source, generated.seen
    raise RuntimeError("the compile generated no code")


@contextmanager
def no_gpu_context() -> Iterator[None]:
    """Context manager: fake tensors and compiles of their graphs create no GPU context, which takes half a gigabyte.
    The first fake tensor creates one in case a backward runs later, and Inductor does when it traces its own patterns;
    patterns traced for a CPU match the same graphs."""
    traced = joint_graph.lazy_init
    with ExitStack() as stack:
        stack.enter_context(replaced(fake_tensor, "init_gpu_context", lambda device: None))
        stack.enter_context(replaced(joint_graph, "lazy_init", lambda device=None: traced(torch.device("cpu"))))
        yield


def triton_kernels(source: str) -> list[tuple[str, str]]:
    """Return name and source of each Triton kernel in an output code."""
    return [(str(name), str(text)) for name, text in _calls(source, "async_compile.triton")]


def cuda_kernels(source: str) -> list[str]:
    """Return the source of each CUDA kernel in an output code."""
    return [str(text) for text, _ in _calls(source, "async_compile.cuda")]


def _calls(source: str, function: str) -> list[tuple[Any, Any]]:
    """Return the first two arguments, both literals, of each call of `function`."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    found = (node.args[:2] for node in calls if ast.unparse(node.func) == function)
    return [(ast.literal_eval(first), ast.literal_eval(second)) for first, second in found]


@contextmanager
def compiling_for(capability: int) -> Iterator[None]:
    """Context manager: compile CUDA code for this compute capability (90 for sm90) without querying a GPU. cuBLASLt,
    which needs one, is not asked for support: calls get the largest workspace."""

    def largest(*_: Any) -> int:
        return matmul.MAX_WORKSPACE

    with inductor_config.patch({"cuda.arch": str(capability)}), replaced(cublaslt, "workspace", largest):
        yield


def compile_cuda(source: str) -> None:
    """Compile one CUDA kernel of an output code into Inductor's cache. Raises RuntimeError if nvcc fails."""
    from torch._inductor.codecache import CUDACodeCache

    CUDACodeCache.compile(source, "so")


def compile_kernel(name: str, source: str) -> None:
    """Compile one Triton kernel of an output code into Triton's cache, as Inductor's own compile workers do."""
    from torch._inductor.codecache import _load_triton_kernel_from_source
    from torch._inductor.runtime.compile_tasks import _worker_compile_triton

    _worker_compile_triton(functools.partial(_load_triton_kernel_from_source, name, source), {}, {})


def load(path: Path) -> Function:
    """Return the function of the output code at `path`. Loads its kernels onto the GPU."""
    module = ModuleType(f"gemmdb_emitted_{path.stem}")
    module.__file__ = str(path)
    with inductor_config.patch(compile_threads=1):
        exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), module.__dict__)
    function: Function = module.call
    return function


_WAIT = "async_compile.wait(globals())\n"
_PATCHES = {
    "trace.enabled": False, "cpp_wrapper": False, "triton.cudagraphs": False, "triton.autotune_at_compile_time": False,
    "triton.store_cubin": False, "benchmark_harness": False,
}  # fmt: skip
"""Force Inductor's Python wrapper, regardless of the program's setting: it runs the same kernels."""


_ALLOCATED = re.compile(r"^(\s*workspace_gemmdb\w* = )empty_strided_cuda\(", re.MULTILINE)
_ZEROED = re.compile(r"^\s*workspace_gemmdb\w*(\[:\d+\])?\.zero_\(\).*\n", re.MULTILINE)


@dataclass(frozen=True)
class Code:
    """The output code of a graph, and the constants that it refers to by name."""

    source: str
    constants: Mapping[str, torch.Tensor]

    @PHASES("compile")
    def begin(self) -> Begun:
        """Start compiling the kernels. If Inductor has no workers yet, wait for the kernels one by one."""
        module = ModuleType("gemmdb_nested")
        # The code waits for its kernels when it is loaded; `Begun.function` waits instead.
        source = _zeroed_before(self.source.replace(_WAIT, "", 1))
        with real_tensors(), undisturbed():
            module.__dict__["_zeros"] = _zeros
            exec(compile(source, "<nested>", "exec", dont_inherit=True), module.__dict__)
        vars(module).update(self.constants)
        return Begun(module)


@dataclass(frozen=True)
class Begun:
    """Output code whose kernels are being compiled."""

    module: ModuleType

    @PHASES("compile")
    def ready(self, seconds: float) -> bool:
        """Whether the kernels are compiled. Waits up to `seconds`."""
        kernels = [one for one in vars(self.module).values() if isinstance(one, CodeCacheFuture)]
        tasks = [task for one in kernels if (task := getattr(one, "future", None)) is not None]
        return not futures.wait(tasks, max(seconds, 0.0)).not_done

    @PHASES("compile")
    def function(self) -> Function:
        """Return the function of the code. Waits for its kernels, loads them, and raises their compile errors."""
        with real_tensors(), undisturbed():
            AsyncCompile().wait(vars(self.module))
        function: Function = self.module.call
        return function


def _zeroed_before(source: str) -> str:
    """Output code with arrival counters zeroed before its first call. Each kernel leaves its counters at zero, so a
    program zeroes the counters of all its kernels only once. A small graph would charge the zeroing to one kernel."""
    return _ALLOCATED.sub(r"\1_zeros(", _ZEROED.sub("", source))


def _zeros(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return _zeros_on(torch.cuda.current_device(), size, stride, dtype)


@functools.lru_cache(maxsize=4)  # The two codes of a trial may differ in it.
def _zeros_on(device: int, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(size, dtype=dtype, device=device).as_strided(size, stride)


@PHASES("generate")
def generate(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Code:
    """Return the output code of a graph for fake `inputs` of fixed sizes. Inductor's exceptions pass through."""
    with (
        undisturbed(),
        codegen.trying(),
        inductor_config.patch(_PATCHES),
        tracing(TracingContext(None)),
        V.set_debug_handler(DebugContext()),
        torch.no_grad(),
    ):
        lowering = GraphLowering(graph, example_inputs=inputs, shape_env=ShapeEnv(), is_inference=True)
        with V.set_graph_handler(lowering), V.set_extern_kernel_nodes([]):
            lowering.run(*inputs)
            code, _ = lowering.codegen()
    return Code(str(code.value), dict(lowering.constants))


@contextmanager
def real_tensors() -> Iterator[None]:
    """Context manager: tensors are real during any tracing, and no gradients are recorded."""
    with _disable_current_modes(), torch.no_grad():
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Context manager: protect the counters and collections of the compile in progress."""
    counted = Counter(counters["inductor"])
    measured = {name: getattr(metrics, name) for name in metrics.get_metric_fields()}
    with ExitStack() as stack:
        for name in ("_entries", "_static_autotuners"):  # Without them, the bundler collects nothing.
            stack.enter_context(replaced(TritonBundler, name, None))
        try:
            yield
        finally:
            counters["inductor"].clear()
            counters["inductor"].update(counted)
            for name, value in measured.items():
                setattr(metrics, name, value)
