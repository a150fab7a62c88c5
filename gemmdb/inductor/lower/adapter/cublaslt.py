"""One algorithm of cuBLASLt as an extern kernel: a call like ATen's, which Inductor schedules and fuses like ATen's."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from ctypes import sizeof
from dataclasses import astuple, dataclass
from importlib import resources
from typing import Any, NamedTuple

import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.lowering import lowerings
from torch._inductor.virtualized import V

from gemmdb import cublaslt
from gemmdb.cublaslt import launch, library
from gemmdb.cublaslt.shape import EXTRAS, Extra, Matrix, Shape
from gemmdb.rejected import Rejected

IMPORT = "from gemmdb.cublaslt import launch as gemmdb_cublaslt"
ATEN = {"mm": "mm", "addmm": "addmm", "bmm": "bmm", "int_mm": "_int_mm", "scaled_mm": "_scaled_mm"}


@dataclass(frozen=True)
class Kernel:
    """What one call needs besides its tensors. `op`: of a Problem. `attributes`: of the algorithm. `workspace`: bytes,
    0 without one. `rows`: M, if it is symbolic; the shape then has its hint."""

    op: str
    shape: Shape
    attributes: Mapping[str, int]
    workspace: int
    rows: Any = None


def rejection() -> Rejected | None:
    """Why the graph being lowered cannot call cuBLASLt, None if it can."""
    if getattr(V.graph, "fx_wrapper", False):
        return Rejected("Inductor's FX wrapper has no call of cuBLASLt")
    platform = getattr(inductor_config.aot_inductor, "cross_target_platform", None)
    return Rejected("AOTInductor's package is for another platform") if platform else None


def workspace(shape: Shape, device: torch.device, attributes: Mapping[str, int]) -> int:
    """Return the bytes that an algorithm needs. Raises launch.Refused if cuBLASLt does not support it on the device."""
    if library.loaded() is None or not torch.cuda.is_available():
        raise launch.Refused("there is no GPU with cuBLASLt here")
    with torch.cuda.device(device):
        return launch.checked(shape, device.index, attributes)[2]


def gemm(kernel: Kernel, operands: tuple[Any, ...]) -> Any:
    """Return the output of the call in Inductor's IR, dense and row-major. `operands`: A, B and the shape's extras, in
    memory, with fixed layouts."""
    a, b, *_ = operands
    device, dtype = a.get_device(), getattr(torch, _TORCH[kernel.shape.out.dtype])
    if kernel.workspace:
        operands = (*operands, uninitialised(kernel.workspace, device))
    sizes = [*a.get_size()[:-1], b.get_size()[-1]]
    strides = ir.FlexibleLayout.contiguous_strides(sizes)
    return ir.TensorBox.create(_Call(kernel, ir.FixedLayout(device, dtype, sizes, strides), operands))


_TORCH = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "int32": "int32"}


def uninitialised(size: int, device: torch.device) -> Any:
    """Return a buffer of the graph that nothing fills. Each call has its own, so streams and CUDA graphs do not share
    it, and Inductor reuses its memory afterwards."""
    made = lowerings[torch.ops.aten.empty_strided.default]([size], [1], dtype=torch.uint8, device=device)
    return ir.ExternKernel.realize_input(made)


class _Call(ir.ExternKernelOut):  # type: ignore[misc]
    """The call of a kernel. Its inputs are the operands, then the workspace."""

    def __init__(self, kernel: Kernel, layout: Any, operands: tuple[Any, ...]) -> None:
        # Inductor estimates and orders a node by this name; only `codegen` decides what is called.
        name = f"extern_kernels.{ATEN[kernel.op]}"
        super().__init__(layout=layout, inputs=list(operands), python_kernel_name=name)
        self.gemmdb_kernel = kernel

    def codegen(self, wrapper: Any) -> None:
        """Inductor's hook: write what the call needs, each part once in the output code, and the call."""
        self.codegen_comment(wrapper)
        kernel = self.gemmdb_kernel
        workspace = self.inputs[-1].codegen_reference() if kernel.workspace else None
        write(wrapper, kernel, self.inputs[: 2 + len(kernel.shape.extras)], (self.get_name(), workspace))


def write(wrapper: Any, kernel: Kernel, operands: Sequence[Any], names: tuple[str, str | None]) -> None:
    """Write a call to the output code, and what it needs. `operands`: as in `gemm`. `names`: of the output and of the
    workspace, if there is one."""
    places, offsets = zip(*map(_place, operands), strict=True)
    (a, b, *extras), (out, workspace) = places, names
    written = _write_cpp if V.graph.cpp_wrapper else _write_python
    written(wrapper, kernel, operands[0].get_device(), offsets, Tensors(a, b, out, workspace, extras))


def _place(node: Any) -> tuple[str, int]:
    """Return a tensor of the output code and the elements from its start to those of `node`. No view is created for
    it."""
    if isinstance(node, ir.ReinterpretView) and node.get_dtype() == node.data.get_dtype():
        return node.data.codegen_reference(), int(node.layout.offset)
    return node.codegen_reference(), 0


Offsets = tuple[int, ...]
"""Elements from the start of each tensor to A, B and the shape's extras."""


class Tensors(NamedTuple):
    """The names of a call's tensors in the output code. `extras`: in the shape's order."""

    a: str
    b: str
    out: str
    workspace: str | None
    extras: list[str]


def _write_python(wrapper: Any, kernel: Kernel, device: torch.device, offsets: Offsets, tensors: Tensors) -> None:
    wrapper.add_import_once(IMPORT)
    wrapper.add_import_once(V.graph.device_ops.import_get_raw_stream_as("get_raw_stream"))
    fields = device.index, dict(kernel.attributes), astuple(kernel.shape), offsets, kernel.workspace
    prepare = "prepare" if kernel.rows is None else "prepare_rows"
    name = _define(wrapper, f"gemmdb_cublaslt.{prepare}({_torch_python(kernel)}, {', '.join(map(repr, fields))})")
    # The stream is asked for here, because the program may have made another one the current stream since.
    arguments = [*_rows(wrapper, kernel), tensors.a, tensors.b, tensors.out, f"get_raw_stream({device.index})"]
    if tensors.workspace or tensors.extras:
        arguments += [str(tensors.workspace), *tensors.extras]
    wrapper.writeline(f"{name}({', '.join(arguments)})")


def _write_cpp(wrapper: Any, kernel: Kernel, device: torch.device, offsets: Offsets, tensors: Tensors) -> None:
    wrapper.add_device_include(device.type)
    _define(wrapper, resources.files(cublaslt).joinpath("launch.h").read_text())
    name = _define(wrapper, cpp_function(kernel, device, offsets))
    extras = dict(zip(kernel.shape.extras, tensors.extras, strict=True))
    last = [tensors.workspace or "nullptr", *(extras.get(one, "nullptr") for one in EXTRAS)]
    arguments = [*_rows(wrapper, kernel), tensors.a, tensors.b, tensors.out, *last]
    wrapper.writeline(f"{name}({', '.join(arguments)});")


def _rows(wrapper: Any, kernel: Kernel) -> list[str]:
    """The first argument of a call for any number of rows."""
    return [] if kernel.rows is None else [str(wrapper.codegen_sizevar(kernel.rows))]


def _define(wrapper: Any, source: str) -> str:
    """Write a definition to the output code, once. Return its name."""
    if source not in wrapper.src_to_kernel:
        name = f"gemmdb_cublaslt_{hashlib.sha256(source.encode()).hexdigest()[:12]}"
        wrapper.src_to_kernel[source] = name
        wrapper.define_kernel(name, source.replace(_NAME, name), gpu=False)
    return str(wrapper.src_to_kernel[source])


_NAME = "GEMMDB_NAME"
"""Stands for the name of a definition within itself."""


def cpp_function(kernel: Kernel, device: torch.device, offsets: Offsets) -> str:
    """Return the C++ function of a call, whose name is GEMMDB_NAME. It may occur several times in one source: the graph
    that folds constants for AOTInductor is put before the graph that uses them."""
    shape, (a, b, *others) = kernel.shape, offsets
    scale = "int32" if shape.accumulate == "int32" else "fp32"
    extras = dict(zip(shape.extras, others, strict=True))
    fields = (
        shape.m, shape.n, shape.k, shape.batch, kernel.op == "bmm", _matrix(shape.a, a), _matrix(shape.b, b),
        _matrix(shape.out, 0), library.COMPUTE[shape.accumulate], library.DTYPES[scale],
        library.DTYPES[shape.bias] if shape.vector_bias else -1, *(shape.scale_modes if shape.scales else (-1, -1)),
        shape.fast, shape.matrix_bias,
        _braces(*(_extra(shape.extras.get(name), extras.get(name, 0)) for name in EXTRAS)),
        library.EPILOGUES[shape.activation][shape.vector_bias], kernel.workspace, kernel.attributes["algo"],
        library.version() // 100, library.capability(device.index or 0),
    )  # fmt: skip
    attributes = [
        _braces(library.CONFIG[name][0], value, sizeof(library.CONFIG[name][1]))
        for name, value in kernel.attributes.items()
        if name != "algo"
    ]
    rows, given, call = ("", "", "Call") if kernel.rows is None else ("int64_t rows, ", "rows, ", "Rows")
    return f"""\
#ifndef {_NAME}_
#define {_NAME}_
static void {_NAME}(
    {rows}AtenTensorHandle a, AtenTensorHandle b, AtenTensorHandle out, AtenTensorHandle workspace,
    AtenTensorHandle bias, AtenTensorHandle scale_a, AtenTensorHandle scale_b) {{
  static const gemmdb_cublaslt::Attribute attributes[] = {_braces(*attributes)};
  static gemmdb_cublaslt::{call} call(
      {_braces(*fields)}, attributes,
      [](AtenTensorHandle out, AtenTensorHandle a, AtenTensorHandle b, AtenTensorHandle bias, AtenTensorHandle scale_a,
         AtenTensorHandle scale_b) {{
{_torch_cpp(kernel, device.type)}
      }});
  call({given}a, b, out, workspace, {{bias, scale_a, scale_b}});
}}
#endif
"""


def _torch_cpp(kernel: Kernel, device: str) -> str:
    """Return the C++ statements that compute the same with torch."""
    activation = kernel.shape.activation
    if not activation:
        operands = "bias, a, b, 1.0, 1.0" if kernel.op == "addmm" else "a, b"
        if kernel.shape.scales:
            fast = int(kernel.shape.fast)
            operands = f"a, b, scale_a, scale_b, bias ? &bias : nullptr, nullptr, nullptr, {fast}"
        return f"        return aoti_torch_{device}_{ATEN[kernel.op]}_out(out, {operands});"
    # Without a bias, `out` stands for one, and nothing reads it.
    added, factor = ("bias", "1.0") if kernel.shape.bias else ("out", "0.0")
    gelu = int(activation == "gelu_tanh")
    return f"""\
        AtenTensorHandle made = nullptr;
        AOTITorchError failed =
            aoti_torch_{device}__addmm_activation({added}, a, b, {factor}, 1.0, {gelu}, &made);
        torch::aot_inductor::RAIIAtenTensorHandle owned(made);
        return failed ? failed : aoti_torch_copy_(out, made, 0);"""


def _torch_python(kernel: Kernel) -> str:
    """Return the Python function that computes the same with torch."""
    function = f"torch.{ATEN[kernel.op]}"
    called = _IN_PLACE.get(kernel.shape.activation, "").format(f"{function}(*operands, out=out)")
    return f"lambda *operands, out: {called}" if called else function


_IN_PLACE = {"relu": "torch.relu_({})", "gelu_tanh": "torch.ops.aten.gelu_({}, approximate='tanh')"}


def _matrix(matrix: Matrix, offset: int) -> str:
    item = launch.ITEM_BYTES[matrix.dtype]
    return _braces(library.DTYPES[matrix.dtype], item, matrix.by_rows, matrix.leading, matrix.batch_stride, offset)


def _extra(extra: Extra | None, offset: int) -> str:
    if extra is None:
        return _braces()
    pairs = (_braces(*values) for values in (extra.sizes, extra.strides))
    return _braces(launch.ITEM_BYTES[extra.dtype], offset, len(extra.sizes), *pairs)


def _braces(*fields: Any) -> str:
    return f"{{{', '.join(str(one).lower() if isinstance(one, bool) else str(one) for one in fields)}}}"
