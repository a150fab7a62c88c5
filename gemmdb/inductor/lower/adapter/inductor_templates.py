"""Inductor's own Triton GEMM templates, generated with one given config."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir
from torch._inductor.kernel import bmm, mm, mm_common, mm_grouped
from torch._inductor.utils import TMA_DESCRIPTOR_SIZE, get_num_sms, get_tma_workspace_arg
from torch.utils._triton import has_triton_stable_tma_api

from gemmdb.inductor.lower.adapter import codegen
from gemmdb.inductor.lower.adapter.templates import Epilogue

_TEMPLATES = {
    "inductor_mm": (mm, "mm_template"),
    "inductor_persistent_tma": (mm, "persistent_tma_mm_template"),
    "inductor_bmm": (bmm, "bmm_template"),
    "inductor_scaled_tma": (mm, "scaled_mm_device_tma_epilogue_scaling_template"),
    "inductor_grouped": (mm_grouped, "triton_grouped_mm_template"),
}


@dataclass(frozen=True)
class Choice:
    """The inputs to generate one kernel: its name in `gemmdb.kernels.registry`, the template's constants, warps and
    pipeline stages."""

    kernel: str
    constants: Mapping[str, Any]
    warps: int
    stages: int


def tma_constants(a_row_major: bool, b_row_major: bool) -> dict[str, Any]:
    """Return the persistent template's constants besides the tile: the operands' memory orders and the number of
    programs."""
    return {
        "A_ROW_MAJOR": a_row_major, "B_ROW_MAJOR": b_row_major, "NUM_SMS": get_num_sms(),
        "TMA_SIZE": TMA_DESCRIPTOR_SIZE, "TMA_EXPERIMENTAL_API": not has_triton_stable_tma_api(),
    }  # fmt: skip


def gemm(
    choice: Choice,
    operands: Sequence[Any],
    out: torch.dtype,
    bias: tuple[Any, float, float] | None = None,
    epilogue: Epilogue | None = None,
) -> Any:
    """Return the output [M, N] in dtype `out`, or a batch of such outputs, in Inductor's IR.

    `operands`: A and B, with fixed layouts. `bias`: expanded to [M, N], with alpha and beta. `epilogue`: the scales of
    an integer GEMM. Raises Inductor's exception if it cannot generate the kernel.
    """
    a, b = operands
    options = _tma_options(a) if "NUM_SMS" in choice.constants else {}
    nodes = [a, b]
    if bias is not None:
        # As in Inductor: the bias comes first, and is added before the accumulator is rounded.
        nodes = [bias[0], a, b]
        options |= {"prefix_args": 1, "epilogue_fn": mm_common.addmm_epilogue(out, *bias[1:])}
    if epilogue is not None:
        rest = epilogue.inputs(*_layout(a, b, out).size)
        nodes = [a, b, *rest]
        options |= {"suffix_args": len(rest), "epilogue_fn": epilogue.apply}
    if choice.kernel == "inductor_bmm":
        # Only torch 2.12's template reads it. It rounds to this dtype before the fused epilogue.
        options["OUT_DTYPE"] = str(out).replace("torch.", "tl.")
    return _generated(choice, nodes, _layout(a, b, out), options)


def scaled_gemm(choice: Choice, operands: Sequence[Any], out: torch.dtype, rest: Sequence[Any]) -> Any:
    """Return the output [M, N] in `out` of a GEMM of fp8 operands with scales; otherwise like `gemm`.

    `operands`: A and B, with fixed layouts. `rest`: the scales of A and B, and maybe a bias, each expanded to [M, N].
    The template with tensor maps reads the scales itself: for it, `rest` is the two original scales, contiguous in
    memory.
    """
    a, b = operands
    if "NUM_SMS" in choice.constants:
        workspace = get_tma_workspace_arg(num_tma_descriptors=2, device=a.get_device())
        options: dict[str, Any] = {"workspace_arg": workspace}
    else:
        options = {"suffix_args": len(rest), "epilogue_fn": mm_common.scale_mm_epilogue()}
    return _generated(choice, [a, b, *rest], _layout(a, b, out), options)


def grouped_constants(ragged_k: bool, a_row_major: bool, b_row_major: bool, scaled: bool) -> dict[str, Any]:
    """Return the grouped template's constants besides the tile. `ragged_k`: the groups divide K. The orders are the
    operands' memory orders. `scaled`: the operands are fp8."""
    return {
        "SCALED": scaled, "A_IS_2D": True, "B_IS_2D": ragged_k, "A_IS_K_MAJOR": a_row_major,
        "B_IS_K_MAJOR": not b_row_major, "NUM_SMS": get_num_sms(), "NUM_CONSUMER_GROUPS": 1, "USE_TMA_LOAD": True,
        "USE_EXPERIMENTAL_MAKE_TENSOR_DESCRIPTOR": not has_triton_stable_tma_api(),
    }  # fmt: skip


def grouped_gemm(choice: Choice, operands: Sequence[Any], out: torch.dtype, sizes: Sequence[int]) -> Any:
    """Return the output of these `sizes` in `out` of a grouped GEMM; otherwise like `gemm`. `operands`: A, B, the
    scales of fp8 operands and the offsets, with fixed layouts."""
    return _generated(choice, operands, ir.FixedLayout(operands[0].get_device(), out, list(sizes)), {})


def _layout(a: Any, b: Any, out: torch.dtype) -> Any:
    return ir.FixedLayout(a.get_device(), out, [*a.get_size()[:-1], b.get_size()[-1]])


def _generated(choice: Choice, nodes: Sequence[Any], layout: Any, options: Mapping[str, Any]) -> Any:
    template = getattr(*_TEMPLATES[choice.kernel])
    generated = template.generate(
        input_nodes=tuple(nodes), layout=layout, num_stages=choice.stages, num_warps=choice.warps,
        **options, **choice.constants,
    )  # fmt: skip
    if generated is None:
        raise RuntimeError("the template cannot be generated")
    return codegen.fusible(generated.output_node())


def _tma_options(a: Any) -> dict[str, Any]:
    """Return the options that Inductor's own heuristics pass to generate the persistent template, if this torch has
    them."""
    known = inspect.signature(mm.persistent_tma_mm_template.generate).parameters
    triton = inductor_config.triton
    options = {
        "tma_store": getattr(triton, "enable_template_tma_store", False),
        "tma_load_for_template_epilogue": getattr(triton, "enable_tma_load_for_template_epilogue", False),
        "transpose_discontiguous_tensor_descriptors_override": True,
    }
    options = {name: value for name, value in options.items() if name in known}
    return {**options, "workspace_arg": get_tma_workspace_arg(num_tma_descriptors=2, device=a.get_device())}
