"""Inductor's output code: generated without a GPU's work, its kernels compiled into the cache, and loaded again."""

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
    """Carries the output code out of a compile that is to go no further; nothing on the way catches it."""

    def __init__(self, source: str, seen: Any) -> None:
        self.source, self.seen = source, seen


def output_code(graph: Any, inputs: Sequence[Any], look: Callable[[], Any]) -> tuple[str, Any]:
    """The output code that compiling `graph` on (fake) `inputs` makes, and what `look` returned when it was made.

    Nothing is run and no kernel is compiled. Raises whatever Inductor raises.
    """
    # A graph from the cache would not be generated, and padding would be timed.
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
    """Inside, neither tensors without memory nor compiling their graphs takes a context on the GPU, half a gigabyte of
    its memory. The first tensor of that kind takes one for the sake of a backward that runs, and Inductor puts scalars
    onto the graph's device when it traces its own patterns; here nothing is run, and patterns traced for a CPU match
    the same graphs."""
    traced = joint_graph.lazy_init
    with ExitStack() as stack:
        stack.enter_context(replaced(fake_tensor, "init_gpu_context", lambda device: None))
        stack.enter_context(replaced(joint_graph, "lazy_init", lambda device=None: traced(torch.device("cpu"))))
        yield


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, an attribute has another value."""
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
    """The first two arguments of each call of `function`, which are literals."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    found = (node.args[:2] for node in calls if ast.unparse(node.func) == function)
    return [(ast.literal_eval(first), ast.literal_eval(second)) for first, second in found]


@contextmanager
def compiling_for(capability: int) -> Iterator[None]:
    """Inside, CUDA code is compiled for that compute capability (90 for sm90), and no GPU is asked for its own."""
    with inductor_config.patch({"cuda.arch": str(capability)}):
        yield


def compile_cuda(source: str) -> None:
    """Compile one CUDA kernel of an output code into Inductor's cache. Raises RuntimeError when nvcc fails."""
    from torch._inductor.codecache import CUDACodeCache

    CUDACodeCache.compile(source, "so")


def compile_kernel(name: str, source: str) -> None:
    """Compile one Triton kernel of an output code into Triton's cache, as Inductor's own compile workers do, which have
    no GPU."""
    from torch._inductor.codecache import _load_triton_kernel_from_source
    from torch._inductor.runtime.compile_tasks import _worker_compile_triton

    _worker_compile_triton(functools.partial(_load_triton_kernel_from_source, name, source), {}, {})


def load(path: Path) -> Function:
    """The function of the output code at `path`; its kernels are loaded onto the GPU."""
    module = ModuleType(f"gemmdb_emitted_{path.stem}")
    module.__file__ = str(path)
    with inductor_config.patch(compile_threads=1):
        exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), module.__dict__)
    function: Function = module.call
    return function
