"""Our CUTLASS kernels as Inductor template buffers: rendered once from our source, compiled, never benchmarked.

After the buffer we use Inductor's own CUTLASS support: scheduling, compiling, calling, packaging. Inductor's earlier
steps need CUTLASS's Python package, which may be missing.
"""

from __future__ import annotations

import functools
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.codegen.cuda import compile_utils
from torch._inductor.codegen.cutlass.kernel import CUTLASSTemplateKernel
from torch._inductor.codegen.cutlass.template import CUTLASSTemplate
from torch._inductor.utils import Placeholder
from torch._inductor.virtualized import V

from gemmdb.kernels import cutlass
from gemmdb.kernels.cutlass import entry
from gemmdb.rejected import Rejected

PROBE_S = 60
"""An empty source compiles in a second or two."""


@dataclass(frozen=True)
class Kernel:
    """The inputs to generate one call. `source`: the CUDA source without an entry point. `order`: its run-time
    arguments, of which sizes may decide some. `leading`: the leading dimensions of A and B in elements. `workspace`:
    maximum workspace in bytes."""

    source: str
    order: tuple[Any, Any, Any]
    leading: tuple[int, int]
    workspace: int


@dataclass(frozen=True)
class Call:
    """A call of `kernel`. `op`: of a Problem. `operands`: by `entry.OPERANDS`, in memory, with fixed layouts. `sizes`:
    M, N, K. `dtype`: of the output."""

    op: str
    kernel: Kernel
    operands: dict[str, Any]
    sizes: tuple[Any, Any, Any]
    dtype: torch.dtype

    @property
    def numbers(self) -> tuple[Any, ...]:
        """The integers that the call passes, as `entry.INTEGERS` names them."""
        return (*self.sizes, *self.kernel.leading, *self.kernel.order, self.kernel.workspace)


class _Kernel(CUTLASSTemplateKernel):  # type: ignore[misc]
    """One call: pointers, then integers, then the arguments that Inductor adds. Several pointers may share a node."""

    def __init__(self, numbers: Sequence[Any]) -> None:
        super().__init__(kernel_name=str(Placeholder.KERNEL_NAME), runtime_arg_info=[], runtime_arg_values=[])
        self.numbers = list(numbers)

    def get_dynamic_shape_args(self) -> list[Any]:
        """Inductor's hook: the integers of the call."""
        return self.numbers

    def get_offset_args(self) -> list[Any]:
        """Inductor's hook: the byte offset of each pointer within its buffer."""
        return [node.get_layout().offset * node.get_dtype().itemsize for node in self.named_nodes.values()]

    def unit(self, source: str, nodes: dict[str, Any], out: Any) -> entry.Unit:
        """Return the source with the function that Inductor calls."""
        for name, node in nodes.items():
            self.named_nodes[name] = node
            self.args.input_buffers.setdefault(node.get_name(), name)
        self.named_nodes[entry.OUT] = out
        self.args.output_buffers[out.get_name()] = entry.OUT
        buffers = {name: self.args.input_buffers[node.get_name()] for name, node in nodes.items()}
        made = entry.unit(source, {**buffers, entry.OUT: entry.OUT})
        self.signature = made.signature
        return made


def _defined(unit: entry.Unit) -> str:
    """Return the source of a unit for the output code, under the unit's own name. Inductor would rename it in each
    graph."""
    wrapper = V.graph.wrapper_code
    if unit.source not in wrapper.src_to_kernel:
        wrapper.src_to_kernel[unit.source] = unit.name
        body = f"async_compile.cuda(r'''\n{unit.source}''', 'so', aot_compile={V.graph.aot_mode})"
        wrapper.define_kernel(unit.name, body)
    return unit.source


def link_rejection() -> Rejected | None:
    """Why the graph being lowered cannot link a CUDA kernel, None if it can."""
    if not V.graph.cpp_wrapper:
        return None
    if not V.graph.aot_mode:
        return Rejected("only AOTInductor's C++ wrapper links CUDA kernels")
    several = inductor_config.aot_inductor.emit_multi_arch_kernel
    return Rejected("AOTInductor does not link CUDA kernels into a package for several GPUs") if several else None


def dense(value: Any) -> Any:
    """Return a scale or bias in contiguous memory, copied if necessary."""
    for stored in (ir.ExternKernel.realize_input(value), ir.ExternKernel.copy_input(value)):
        stored.freeze_layout()
        layout = stored.get_layout()
        pairs = zip(layout.size, layout.stride, ir.FlexibleLayout.contiguous_strides(layout.size), strict=True)
        if all(size == 1 or stride == wanted for size, stride, wanted in pairs):
            break
    return stored


def with_our_headers(original: Callable[[], list[str]]) -> Callable[[], list[str]]:
    """Wrap the include paths of Inductor's nvcc: use those of the nvidia-cutlass package, unless the user has
    configured their own CUTLASS."""

    @functools.wraps(original)
    def paths() -> list[str]:
        ours = cutlass.headers()
        return list(original()) if _users_version().is_file() or ours is None else [str(ours)]

    return paths


def _users_version() -> Path:
    """Return the version header of the user's own CUTLASS, if any."""
    return Path(inductor_config.cutlass.cutlass_dir, "include", "cutlass", "version.h")


@functools.cache
def compiler_rejection() -> Rejected | None:
    """Why no kernel can be compiled, None if one can. Compiles an empty source, once per process: the kernel itself is
    compiled when the graph is loaded, too late to choose another one."""
    if _users_version().is_file():
        if "#define CUTLASS_MAJOR 4\n" not in _users_version().read_text():
            return Rejected("the CUTLASS in Inductor's config is not version 4")
    elif cutlass.headers() is None:
        return Rejected("the nvidia-cutlass package is not installed")
    with tempfile.TemporaryDirectory(prefix="gemmdb-nvcc-") as folder:
        source = Path(folder, "empty.cu")
        source.write_text("")
        command = compile_utils.cuda_compile_command([str(source)], str(source.with_suffix(".so")), "so")
        try:
            done = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=PROBE_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            return Rejected(f"nvcc: {type(error).__name__}")
    lines = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else Rejected(f"nvcc: {lines[0][:200] if lines else done.returncode}")


def gemm(call: Call) -> Any:
    """Return the output [M, N] of a call in Inductor's IR."""
    layout = ir.FixedLayout(call.operands["a"].get_device(), call.dtype, list(call.sizes[:2]), [call.sizes[1], 1])

    def make(node: Any, epilogue_nodes: Sequence[Any] | None = None) -> tuple[Any, Callable[[], str]]:
        made = _Kernel(call.numbers)
        return made, lambda: _defined(made.unit(call.kernel.source, call.operands, node))

    nodes = list(call.operands.values())
    template = CUTLASSTemplate("gemmdb_gemm", nodes, layout)
    return ir.TensorBox.create(
        ir.CUTLASSTemplateBuffer(
            layout=layout, inputs=nodes, make_kernel_render=make, workspace_size=call.kernel.workspace,
            template=template, supports_epilogue_fusion=False,
        )
    )  # fmt: skip


def write(call: Call, out: Any) -> None:
    """Write a call without a workspace, which stores the node `out`, to the output code."""
    made = _Kernel(call.numbers)
    unit = made.unit(call.kernel.source, call.operands, out)
    _defined(unit)
    made.call_kernel(unit.name, _WITHOUT_WORKSPACE)


_WITHOUT_WORKSPACE = SimpleNamespace(get_workspace_size=lambda: 0)
"""What Inductor asks for the workspace of a call."""
