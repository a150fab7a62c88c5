"""Our Triton templates as Inductor templates: registered once, generated with one config, never benchmarked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.codegen.common import TritonScratchWorkspace, WorkspaceArg, WorkspaceZeroMode
from torch._inductor.codegen.cuda.device_op_overrides import CUDADeviceOpOverrides
from torch._inductor.lowering import lowerings
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.select_algorithm import SymbolicGridFn, TritonTemplate, TritonTemplateKernel, realize_inputs
from torch._inductor.virtualized import V

from gemmdb.inductor.lower.adapter import codegen, state, workspaces
from gemmdb.inductor.lower.adapter.codegen import WORKSPACE
from gemmdb.kernels import triton
from gemmdb.kernels.registry import KERNELS
from gemmdb.kernels.triton import MAX_COUNTERS
from gemmdb.key.ops import OPS
from gemmdb.rejected import Rejected

aten = torch.ops.aten


def grid(name: str) -> Any:
    """Return the launch grid of our kernel of that name. For persistent kernels, it has as many programs as fit on the
    GPU, but no more than output tiles."""
    kernel = KERNELS["triton", name]
    template = kernel.template
    if template is None:
        raise KeyError(f"{name} is not one of our kernels")

    def whole(m: Any, n: Any, meta: Mapping[str, Any], *, cdiv: Callable[[Any, Any], Any]) -> tuple[Any, Any, Any]:
        return template.grid(m, n, meta, cdiv)

    def resident(
        m: Any, n: Any, meta: Mapping[str, Any], *, cdiv: Callable[[Any, Any], Any], min: Callable[[Any, Any], Any]
    ) -> tuple[Any, Any, Any]:
        programs, *others = template.grid(m, n, meta, cdiv)
        return min(meta["PROGRAMS"], programs), *others

    def of_each(
        batch: Any, m: Any, n: Any, meta: Mapping[str, Any], *, cdiv: Callable[[Any, Any], Any]
    ) -> tuple[Any, Any, Any]:
        tiles, slices, _ = template.grid(m, n, meta, cdiv)
        return tiles, slices, batch

    if batched(name):
        return SymbolicGridFn(of_each)
    return SymbolicGridFn(resident if "resident" in kernel.params else whole)


def batched(name: str) -> bool:
    """Whether our kernel of that name supports batches: the grid's third dimension counts the matrices."""
    return all(OPS[op].batched for op in KERNELS["triton", name].ops)


@dataclass(frozen=True)
class Kernel:
    """The inputs to generate one kernel: the template's name, its constants, warps and pipeline stages.

    `partials`: the number of 32-bit partial sums for a kernel that counts the arrivals at each tile; 0 for all others.
    """

    template: str
    constants: Mapping[str, Any]
    warps: int
    stages: int
    partials: int = 0


@dataclass(frozen=True)
class Epilogue:
    """An epilogue that multiplies the accumulator by `alpha` and by each of the `scales`, and adds `beta` times the
    `bias`. Scales and bias are nodes of the IR that broadcast to [M, N]; `bias` is None if there is none. `integer`:
    the accumulator is int32, and is scaled in fp32."""

    scales: tuple[Any, ...] = ()
    bias: Any = None
    alpha: float = 1.0
    beta: float = 1.0
    integer: bool = False

    def inputs(self, *sizes: Any) -> list[Any]:
        """The nodes, in memory and expanded to `sizes`, in the order of the values that `apply` takes."""
        return [expanded(node, *sizes) for node in (*self.scales, self.bias) if node is not None]

    def apply(self, result: Any, *values: Any) -> Any:
        """The epilogue of a template: Inductor's operations on one element, for inputs in the order of `inputs`."""
        rest = list(values)
        if self.integer and self.scales:
            result = V.ops.to_dtype(result, torch.float32)
        if self.alpha != 1:
            result = V.ops.mul(result, V.ops.constant(self.alpha, torch.float32))
        for _ in self.scales:
            result = V.ops.mul(result, rest.pop(0))
        if self.bias is not None:
            bias = rest.pop(0)
            if self.beta != 1:
                bias = V.ops.mul(bias, V.ops.constant(self.beta, torch.float32))
            result = V.ops.add(result, bias)
        return result


class _Kernel(TritonTemplateKernel):  # type: ignore[misc]
    """A kernel from one of our templates. A graph's kernels share one workspace: the counters, with the same number in
    every kernel, zeroed once per call of the graph and left at zero by each kernel, and the partial sums, which are
    never zeroed. The workspace's name starts like Inductor's own, so Inductor's C++ output does not treat it as a
    tensor of the graph.
    """

    def __init__(self, *args: Any, workspace_arg: Any = None, **options: Any) -> None:
        if workspace_arg is not None:
            workspace_arg = workspaces.shared(workspace_arg)
        super().__init__(*args, workspace_arg=workspace_arg, **options)

    def def_kernel(self, *names: str) -> str:
        """Inductor's own hook, plus a line with the location of the partial sums."""
        head = super().def_kernel(*names)
        if self.workspace_arg is None:
            return str(head)
        return f"{head}\n    partials = (counters + {MAX_COUNTERS}).to(tl.pointer_type({self.meta['ACC_TYPE']}))"

    def call_kernel(self, name: str, *args: Any, **options: Any) -> None:
        """Inductor's own hook, except that a kernel with a workspace allocates it if that was deferred, and is left out
        of what Inductor runs while it compiles. `standalone_compile` has it run every kernel at the hint's sizes: a
        kernel for fewer rows would write past the end of its workspace there. Nothing is lost, since it has one config.
        """
        if self.workspace_arg is not None:
            if not V.graph.cpp_wrapper:
                V.graph.wrapper_code.kernel_autotune_names.add(name)
            workspaces.ensure(V.graph.wrapper_code, self.workspace_arg)
        super().call_kernel(name, *args, **options)


class _Template(TritonTemplate):  # type: ignore[misc]
    kernel_type = _Kernel


def runs_at_hint() -> bool:
    """Return whether Inductor runs each Triton kernel at the hint's sizes while it compiles, with no exception: its C++
    wrapper learns in this way how kernels are launched."""
    return bool(V.graph.cpp_wrapper and inductor_config.triton.autotune_at_compile_time)


def registered(name: str) -> Any:
    """Return Inductor's template object for our template `name`, registered under a name with the digest of its source:
    Inductor rejects a duplicate name, even if this module is reloaded."""
    full = f"gemmdb_{name}_{triton.digest(name)}"
    known = TritonTemplate.all_templates.get(full)
    return known or _Template(name=full, grid=grid(name), source=triton.source(name))


def multiprocessors(node: Any) -> int:
    """Return the number of multiprocessors of the GPU that holds `node`."""
    return int(DeviceProperties.create(node.get_device()).multi_processor_count)


def tensor_map_rejection() -> Rejected | None:
    """Why the code being generated must not call a Triton kernel that builds tensor maps, None if it may: the C++ code
    of torch 2.11's Inductor allocates scratch for the maps of one program, and others write past its end."""
    if not V.graph.cpp_wrapper:
        return None
    scratch = CUDADeviceOpOverrides().cpp_scratch(0, TritonScratchWorkspace(1, lambda: ""))
    enough = scratch is None or "grid_0" in "".join(scratch[0])
    return None if enough else Rejected("this torch's C++ wrapper has no room for the tensor maps of several programs")


def settled(matrix: Any, row_major: bool | None = None) -> Any:
    """Return `matrix` in memory, with strides that Inductor no longer changes. `row_major`: how to store computed
    values. By default the order is Inductor's eventual choice, usually the order of its inputs: a cast weight keeps its
    order. Frozen without that, it would be row-major, and transposed while it is computed."""
    matrix = realize_inputs(matrix)
    box = matrix.data if isinstance(matrix, ir.TensorBox) else matrix
    buffer = box.data if isinstance(box, ir.StorageBox) else None
    if isinstance(buffer, ir.ComputedBuffer) and isinstance(buffer.layout, ir.FlexibleLayout):
        if row_major is None:
            buffer.decide_layout()
        elif not row_major:
            buffer.freeze_layout_with_fill_order([0, 1])
    matrix.freeze_layout()
    return matrix


def contiguous(value: Any) -> Any:
    """Return `value` in row-major memory, with the strides that torch gives such a tensor, also for sizes of 1."""
    value = settled(value)
    strides = ir.FlexibleLayout.contiguous_strides(list(value.get_size()))
    if list(value.get_stride()) == list(strides):
        return value
    copied = ir.TensorBox(ir.ExternKernel.copy_input(value))
    copied.freeze_layout()  # Freeze the current strides: Inductor would choose other strides for a size of 1.
    return copied


def expanded(value: Any, *sizes: Any) -> Any:
    """Return a scale or bias in memory, expanded to `sizes`: [M, N], or those of a batch."""
    stored = ir.TensorBox(ir.ExternKernel.realize_input(value))
    return ir.ExternKernel.realize_input(lowerings[aten.expand.default](stored, list(sizes)))


def column(value: Any) -> Any:
    """Return a vector [M] as [M, 1]."""
    return lowerings[aten.unsqueeze.default](value, 1)


def gemm(
    kernel: Kernel,
    operands: Sequence[Any],
    out: tuple[torch.dtype, Sequence[int]],
    epilogue: Epilogue | None = None,
    launched: Sequence[int] = (),
) -> Any:
    """Return the output of `kernel`, as the only choice, in Inductor's IR. Takes the arguments of `choice`."""
    output = choice(kernel, operands, out, epilogue, launched).output_node()
    return output if launched else codegen.fusible(output)


def choice(
    kernel: Kernel,
    operands: Sequence[Any],
    out: tuple[torch.dtype, Sequence[int]],
    epilogue: Epilogue | None = None,
    launched: Sequence[int] = (),
) -> Any:
    """Return `kernel` as one of Inductor's choices, which is no node of the graph yet.

    `operands`: those that the template names, A and B first, in memory, with fixed strides. `out`: dtype and sizes of
    the output, [M, N], [slices of K, M, N] or, for a batched kernel, [batch, M, N]. `launched`: M and N of the launch
    grid if the output is stored differently. Raises Inductor's exception if it cannot generate the kernel.
    """
    dtype, sizes = out
    strides = ir.FlexibleLayout.contiguous_strides(list(sizes))
    layout = ir.FixedLayout(operands[0].get_device(), dtype, list(sizes), strides)
    options: dict[str, Any] = {}
    rest: list[Any] = []
    if epilogue is not None:
        rest = epilogue.inputs(*sizes)
        options = {"suffix_args": len(rest), "epilogue_fn": epilogue.apply}
    if kernel.partials:
        options["workspace_arg"] = WorkspaceArg(
            count=MAX_COUNTERS + kernel.partials, zero_mode=WorkspaceZeroMode.ZERO_PER_GRAPH, dtype=torch.int32,
            device=layout.device, inner_name="counters", outer_name=WORKSPACE,
        )  # fmt: skip
    found = registered(kernel.template).generate(
        input_nodes=(*operands, *rest), layout=layout, num_stages=kernel.stages, num_warps=kernel.warps,
        call_sizes=list(launched or (sizes if batched(kernel.template) else sizes[-2:])), **options, **kernel.constants,
    )  # fmt: skip
    if found is None:
        raise RuntimeError("the template cannot be generated")
    return found


def summed(partials: Any, epilogue: Epilogue, dtype: torch.dtype) -> Any:
    """Return the sum of `partials` [slices of K, M, N] in order, with the epilogue, as `dtype`, computed in the
    partials' dtype, but integer scales in fp32. Inductor fuses later work into the same kernel."""
    convert, times = lowerings[torch.ops.prims.convert_element_type.default], lowerings[aten.mul.Tensor]
    result = state.unrolled_sum(partials, 0, partials.get_dtype())
    if epilogue.integer and epilogue.scales:
        result = convert(result, torch.float32)
    if epilogue.alpha != 1:
        result = times(result, epilogue.alpha)
    for scale in epilogue.scales:
        result = times(result, scale)
    if epilogue.bias is not None:
        bias = epilogue.bias
        if epilogue.beta != 1:
            bias = times(convert(bias, partials.get_dtype()), epilogue.beta)
        result = lowerings[aten.add.Tensor](result, bias)
    result = convert(result, dtype)
    result.realize()
    return result
