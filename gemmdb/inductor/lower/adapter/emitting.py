"""Inductor's output code: generated without running a GPU, its kernels compiled into the cache, and loaded again."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch._inductor.compile_fx as entry
from torch._inductor import config as inductor_config
from torch._inductor.fx_passes import joint_graph
from torch._inductor.graph import GraphLowering
from torch._subclasses import fake_tensor

Function = Callable[[list[Any]], Sequence[Any]]
"""The function of an output code: takes the list of the graph's inputs, empties it, and returns the outputs."""


class _Generated(BaseException):
    """Stops a compile and hands out its output code. Nothing on the way catches it."""

    def __init__(self, source: str, seen: Any) -> None:
        self.source, self.seen = source, seen


def output_code(graph: Any, inputs: Sequence[Any], look: Callable[[], Any]) -> tuple[str, Any]:
    """Compile `graph` on (fake) `inputs`. Returns the output code, and what `look` returned when the code was made.

    Nothing is run and no kernel is compiled. Exceptions of Inductor pass through.
    """
    # With its cache, Inductor may generate no code. With padding on, it would time products.
    patches = {"fx_graph_cache": False, "shape_padding": False}
    with inductor_config.patch(patches), _stopped_at_the_code(look):
        try:
            entry.compile_fx(graph, inputs)
        except _Generated as generated:
            return generated.source, generated.seen
    raise RuntimeError("the compile made no code")


@contextmanager
def _stopped_at_the_code(look: Callable[[], Any]) -> Iterator[None]:
    def stop(self: Any) -> Any:
        code = self.codegen()[0]
        raise _Generated(code.value, look())

    with replaced(GraphLowering, "compile_to_module", stop):
        yield


@contextmanager
def no_gpu_context() -> Iterator[None]:
    """Inside, fake tensors and the compiles of their graphs create no context on the GPU. A context takes half a
    gigabyte of its memory. The first fake tensor creates one in case a backward runs later, and Inductor puts scalars
    onto the graph's device when it traces its own patterns. Here nothing is run, and patterns that were traced for a
    CPU match the same graphs."""
    traced = joint_graph.lazy_init
    with ExitStack() as stack:
        stack.enter_context(replaced(fake_tensor, "init_gpu_context", lambda device: None))
        stack.enter_context(replaced(joint_graph, "lazy_init", lambda device=None: traced(torch.device("cpu"))))
        yield


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, the attribute `name` of `owner` is `value`."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def triton_kernels(source: str) -> list[tuple[str, str]]:
    """Name and source of each Triton kernel in an output code."""
    return [(str(name), str(text)) for name, text in _calls(source, "async_compile.triton")]


def cuda_kernels(source: str) -> list[str]:
    """The source of each CUDA kernel in an output code."""
    return [str(text) for text, _ in _calls(source, "async_compile.cuda")]


def _calls(source: str, function: str) -> list[tuple[Any, Any]]:
    """The first two arguments of each call of `function`. They are literals."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    found = (node.args[:2] for node in calls if ast.unparse(node.func) == function)
    return [(ast.literal_eval(first), ast.literal_eval(second)) for first, second in found]


@contextmanager
def compiling_for(capability: int) -> Iterator[None]:
    """Inside, CUDA code is compiled for that compute capability (90 for sm90). No GPU is asked for its capability."""
    with inductor_config.patch({"cuda.arch": str(capability)}):
        yield


def compile_cuda(source: str) -> None:
    """Compile one CUDA kernel of an output code into Inductor's cache. Raises RuntimeError when nvcc fails."""
    from torch._inductor.codecache import CUDACodeCache

    CUDACodeCache.compile(source, "so")


def compile_kernel(name: str, source: str) -> None:
    """Compile one Triton kernel of an output code into Triton's cache. Inductor's own compile workers, which have no
    GPU, do the same."""
    from torch._inductor.codecache import _load_triton_kernel_from_source
    from torch._inductor.runtime.compile_tasks import _worker_compile_triton

    _worker_compile_triton(functools.partial(_load_triton_kernel_from_source, name, source), {}, {})


def load(path: Path) -> Function:
    """The function of the output code at `path`. This loads its kernels onto the GPU."""
    module = ModuleType(f"gemmdb_emitted_{path.stem}")
    module.__file__ = str(path)
    with inductor_config.patch(compile_threads=1):
        exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), module.__dict__)
    function: Function = module.call
    return function
