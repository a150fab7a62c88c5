"""One node of Inductor's graph that is computed by one of several kernels, by the number of rows at run time.

The output code compares M and launches one of them, in Python and in C++ alike. What Inductor fuses into the node
becomes the epilogue of each template. ATen, cuBLASLt and CUTLASS compute no epilogue, so where they are chosen it is a
kernel of its own, as in a graph without the choice. A CUDA graph is captured for each size, and has one of the kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.codegen.wrapper import WrapperLine
from torch._inductor.scheduler import FusedSchedulerNode
from torch._inductor.virtualized import V

from gemmdb.inductor.lower.adapter import codegen, cublaslt, cutlass, workspaces
from gemmdb.inductor.lower.adapter.row_choice import Aten, Chosen, Part
from gemmdb.inductor.lower.adapter.state import replaced
from gemmdb.inductor.lower.adapter.wrapper_lines import Allocation, Scope

_CHOSEN = "_gemmdb_rows"


def gemm(chosen: Chosen, dtype: torch.dtype) -> Any:
    """Return the output of the node in Inductor's IR, dense and row-major, of `dtype`."""
    kernels = [part.kernel for part in chosen.parts if part.template]
    if not kernels:
        return ir.TensorBox.create(_Extern(chosen, dtype))
    output = codegen.fusible(kernels[0].output_node())
    buffer = output.data.data
    known = {node.get_name() for node in buffer.inputs}
    # What only one of the others reads must be there, too.
    buffer.inputs += [node for node in chosen.inputs if node.get_name() not in known]
    setattr(buffer, _CHOSEN, chosen)
    return output


class _Extern(ir.ExternKernelOut):  # type: ignore[misc]
    """A choice among calls."""

    def __init__(self, chosen: Chosen, dtype: torch.dtype) -> None:
        a, b, *_ = chosen.operands
        sizes = [a.get_size()[0], b.get_size()[1]]
        layout = ir.FixedLayout(a.get_device(), dtype, sizes, ir.FlexibleLayout.contiguous_strides(sizes))
        op = next(part.kernel.op for part in chosen.parts)
        # Inductor estimates and orders a node by this name; only `codegen` decides what is called.
        super().__init__(layout=layout, inputs=chosen.inputs, python_kernel_name=f"extern_kernels.{cublaslt.ATEN[op]}")
        self.gemmdb_chosen = chosen

    def codegen(self, wrapper: Any) -> None:
        """Inductor's hook: write the choice."""
        self.codegen_comment(wrapper)
        chosen = self.gemmdb_chosen
        _write(wrapper, chosen, lambda part: _call(wrapper, chosen, part, self))


def choosing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the method that writes the kernel of a template and its call: write all kernels of a choice."""

    @functools.wraps(original)
    def codegen_template(self: Any, template: Any, epilogue: Any, prologue: Any, *args: Any, **options: Any) -> Any:
        chosen = getattr(template.node, _CHOSEN, None)
        if chosen is None or options.get("only_gen_src_code"):
            return original(self, template, epilogue, prologue, *args, **options)
        wrapper, node = V.graph.wrapper_code, template.node
        for one in (template, *epilogue):  # Whichever kernel runs; those that turn out to be unused are left out.
            one.mark_run()
        # Kernels of the whole graph share the stream's variable in C++, and the workspace.
        wrapper.writeline(_Stream(wrapper, node.get_device(), V.graph.name))
        for part in chosen.parts:
            if part.template and part.kernel.workspace_arg is not None:
                workspaces.defer(wrapper, workspaces.shared(part.kernel.workspace_arg))

        def write(part: Part) -> None:
            if not part.template:
                _unfused(self, chosen, part, (template, epilogue))
                return
            with replaced(node, "make_kernel_render", part.kernel.make_kernel_render):
                original(self, template, epilogue, prologue, *args, **options)

        with replaced(self.scheduler, "free_buffers", lambda: None):
            _write(wrapper, chosen, write)
        self.free_buffers_in_scheduler()
        return None

    return codegen_template


def _unfused(scheduling: Any, chosen: Chosen, part: Part, nodes: tuple[Any, Sequence[Any]]) -> None:
    """Write a call of a part that fuses nothing, and the epilogue as a kernel of its own."""
    template, epilogue = nodes
    wrapper, node, graph = V.graph.wrapper_code, template.node, V.graph
    removed = graph.removed_buffers
    alone = node.get_name() in removed
    if alone:  # The templates keep it in registers.
        wrapper.writeline(Allocation(wrapper, node))
    _call(wrapper, chosen, part, node)
    if epilogue:
        inside = {name for one in (template, *epilogue) for name in one.get_buffer_names()}
        fused = epilogue[0] if len(epilogue) == 1 else FusedSchedulerNode(scheduling.scheduler, list(epilogue))
        # What it stores is memory that the templates store, too, so nothing may be updated in place.
        with replaced(graph, "removed_buffers", removed - inside), inductor_config.patch(inplace_buffers=False):
            scheduling.codegen_node(fused)
    if alone and not graph.cpp_wrapper:
        wrapper.writeline(f"del {node.get_name()}")


def _write(wrapper: Any, chosen: Chosen, write: Callable[[Part], None]) -> None:
    """Write all kernels, each in a branch of its own. Templates come first: what they do not store is known then. ATen
    comes last: it often has the most ranges, and the last branch needs no test."""
    branches = sorted(_branches(chosen), key=lambda one: (not one[1].template, isinstance(one[1].kernel, Aten)))
    rows, cpp = wrapper.codegen_sizevar(chosen.rows), V.graph.cpp_wrapper
    for place, (ranges, part) in enumerate(branches):
        test = (" || " if cpp else " or ").join(_test(rows, *one, cpp) for one in ranges)
        last = 0 < place == len(branches) - 1
        word = "else" if last else ("if" if place == 0 else "else if" if cpp else "elif")
        begin = word if last else f"{word} ({test})" if cpp else f"{word} {test}"
        scope = Scope(wrapper)
        wrapper.writeline(_Begin(scope, f"{begin} {{" if cpp else f"{begin}:"))
        with scope:
            write(part)
        wrapper.writeline(_End(scope, "}" if cpp else ""))


def _branches(chosen: Chosen) -> list[tuple[list[_Rows], Part]]:
    """Return the parts with the rows that they compute. Parts that call the same algorithm with the same
    workspace, or ATen, are one."""
    found: list[tuple[list[_Rows], Part]] = []
    above: int | None = None
    for part in chosen.parts:
        plain = isinstance(part.kernel, Aten | cublaslt.Kernel)  # Others hold nodes, which have no equality.
        same = next((ranges for ranges, one in found if plain and one.kernel == part.kernel), None)
        if same is None:
            found.append(([(above, part.limit)], part))
        elif same[-1][1] == above:
            same[-1] = same[-1][0], part.limit
        else:
            same.append((above, part.limit))
        above = part.limit
    return found


_Rows = tuple[int | None, int | None]
"""The largest number of rows below a part, and its own largest."""


def _test(rows: str, above: int | None, limit: int | None, cpp: bool) -> str:
    """Return the test whether there are more than `above` rows and at most `limit`."""
    if above is not None and limit is not None and not cpp:
        return f"{above} < {rows} <= {limit}"
    tests = [f"{rows} > {above}"] if above is not None else []
    tests += [f"{rows} <= {limit}"] if limit is not None else []
    return " && ".join(tests) or "1"


def _call(wrapper: Any, chosen: Chosen, part: Part, node: Any) -> None:
    """Write a call of cuBLASLt, CUTLASS or ATen, which stores `node`."""
    kernel, out = part.kernel, node.get_name()
    if isinstance(kernel, cutlass.Call):
        cutlass.write(kernel, node)
        return
    if isinstance(kernel, cublaslt.Kernel):
        _call_cublaslt(wrapper, kernel, chosen.operands, out)
        return
    a, b, *extras = [node.codegen_reference() for node in chosen.operands]
    write = _aten_cpp if V.graph.cpp_wrapper else _aten_python
    wrapper.writeline(write(kernel, (a, b, out), extras, chosen.operands[0].get_device().type))


def _call_cublaslt(wrapper: Any, kernel: cublaslt.Kernel, operands: Sequence[Any], out: str) -> None:
    if not kernel.workspace:
        cublaslt.write(wrapper, kernel, operands, (out, None))
        return
    space = workspaces.of_size(f"{out}_workspace", kernel.workspace, operands[0].get_device())
    wrapper.writeline(Allocation(wrapper, space))
    cublaslt.write(wrapper, kernel, operands, (out, space.get_name()))
    if not V.graph.cpp_wrapper:  # There it ends with the branch.
        wrapper.writeline(f"del {space.get_name()}")


def _aten_python(kernel: Aten, tensors: tuple[str, str, str], extras: Sequence[str], device: str) -> str:
    a, b, out = tensors
    if kernel.op == "scaled_mm":
        *bias, scale_a, scale_b = extras
        added = f"bias={bias[0]}, " if bias else ""
        how = f"out_dtype={out}.dtype, use_fast_accum={kernel.fast}, out={out}"
        return f"torch._scaled_mm({a}, {b}, {scale_a}, {scale_b}, {added}{how})"
    if kernel.op == "addmm":
        alpha, beta = kernel.scalars
        return f"extern_kernels.addmm({extras[0]}, {a}, {b}, alpha={alpha!r}, beta={beta!r}, out={out})"
    return f"extern_kernels.{cublaslt.ATEN[kernel.op]}({a}, {b}, out={out})"


def _aten_cpp(kernel: Aten, tensors: tuple[str, str, str], extras: Sequence[str], device: str) -> str:
    a, b, out = tensors
    operands = [a, b]
    if kernel.op == "scaled_mm":
        *bias, scale_a, scale_b = extras
        handle = "nullptr" if not bias else f"std::array<AtenTensorHandle, 1>{{{bias[0]}}}.data()"
        operands += [scale_a, scale_b, handle, "nullptr", "nullptr", str(int(kernel.fast))]
    elif kernel.op == "addmm":
        alpha, beta = map(float, kernel.scalars)
        operands = [extras[0], a, b, repr(beta), repr(alpha)]
    function = f"aoti_torch_{device}_{cublaslt.ATEN[kernel.op]}_out"
    return f"AOTI_TORCH_ERROR_CODE_CHECK({function}({', '.join([out, *operands])}));"


@dataclass
class _Begin(WrapperLine):  # type: ignore[misc]
    """The line of the output code that begins a branch."""

    scope: Scope
    text: str

    def codegen(self, code: Any) -> None:
        code.writeline(self.text)
        code.do_indent()
        self.scope.__enter__()


@dataclass
class _End(WrapperLine):  # type: ignore[misc]
    """The end of a branch, with a line in C++."""

    scope: Scope
    text: str

    def codegen(self, code: Any) -> None:
        self.scope.__exit__()
        code.do_unindent()
        if self.text:
            code.writeline(self.text)


@dataclass
class _Stream(WrapperLine):  # type: ignore[misc]
    """The line that reads the current stream, which Inductor writes before the first kernel of its C++ code."""

    wrapper: Any
    device: torch.device
    graph: str

    def codegen(self, code: Any) -> None:
        if V.graph.cpp_wrapper and not V.graph.aot_mode:  # Python's code reads it at each call; a package is given it.
            self.wrapper.write_get_raw_stream(self.device.index, self.graph)
