"""Calls of serving engines' operators: one for each kind of scales and types that is opened.

This module imports torch: only tests that need torch import it."""

from typing import Any

import torch

from gemmdb.settings import Policy
from kit import engine_ops as engine
from kit.engine_ops import (
    BF16,
    CUTLASS,
    E4M3,
    MSLK_INT4,
    SGL_BLOCKS,
    SGL_FP8,
    SGL_INT8,
    TRITON_BLOCKS,
    TRITON_INT8,
    integers,
)

PATIENT = Policy(on_miss="aten", confirm=True, confirm_s=300.0)
STAYS = "the engine's operator stays"


def fp8(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes).to(E4M3)


def column(rows: int, blocks: int) -> torch.Tensor:
    """Block scales that follow each other along the first dimension."""
    return torch.rand(blocks, rows).t()


def vllm(a: Any, w: Any, s: Any, t: Any, bias: Any = None) -> Any:
    return engine.scaled_mm(a, w.t(), s, t, bias=bias)


def vllm_blocks(a: Any, w: Any, s: Any, t: Any) -> Any:
    return engine.scaled_mm(a, w.t(), s, t.t())


def triton_blocks(a: Any, w: Any, s: Any, t: Any) -> Any:
    return torch.ops.vllm.w8a8_triton_block_scaled_mm_func(a, w, s, t, [128, 128], BF16)


def triton_int8(a: Any, w: Any, s: Any, t: Any) -> Any:
    return torch.ops.vllm.int8_scaled_mm_func(a, w.t(), s, t, BF16)


def sgl_fp8(a: Any, w: Any, s: Any, t: Any, bias: Any = None) -> Any:
    return torch.ops.sgl_kernel.fp8_scaled_mm(a, w.t(), s, t, BF16, bias)


def sgl_int8(a: Any, w: Any, s: Any, t: Any) -> Any:
    return torch.ops.sgl_kernel.int8_scaled_mm(a, w.t(), s, t, BF16, None)


def sgl_blocks(a: Any, w: Any, s: Any, t: Any) -> Any:
    return torch.ops.sgl_kernel.fp8_blockwise_scaled_mm(a, w.t(), s, t.t(), BF16)


def mslk(a: Any, w: Any, s: Any, z: Any) -> Any:
    return torch.ops.mslk.bf16i4bf16_rowwise(a, w, s, z)


ROWS, NUMBERS = (torch.rand(8, 1), torch.rand(32, 1)), (torch.rand(1), torch.rand(()))
BLOCKS = (fp8(8, 256), fp8(128, 256), column(8, 2), torch.rand(1, 2))
SMALL, SMALL_INT8 = (fp8(8, 64), fp8(32, 64)), (integers(8, 64), integers(32, 64))
BIAS = torch.randn(32).to(BF16)
SMALL_INT4 = (torch.randn(8, 64).to(BF16), integers(32, 32), torch.rand(2, 32).to(BF16), torch.randn(2, 32).to(BF16))
INT4 = {"op": "mixed_mm", "weight_dtype": "int4", "group": 32, "packing": "plain"}
OPENED = {
    "vLLM, rows": (CUTLASS, vllm, (*SMALL, *ROWS), {"scales": "row"}),
    "vLLM, numbers": (CUTLASS, vllm, (*SMALL, *NUMBERS), {"scales": "tensor"}),
    "vLLM, bias": (CUTLASS, vllm, (*SMALL, *ROWS, BIAS), {"scales": "row", "bias": "1d"}),
    "vLLM, blocks": (CUTLASS, vllm_blocks, BLOCKS, {"scales": "block"}),
    "vLLM, int8": (CUTLASS, vllm, (*SMALL_INT8, *ROWS), {}),
    "vLLM, int8 with a number": (CUTLASS, vllm, (*SMALL_INT8, NUMBERS[0], ROWS[1], BIAS), {}),
    "vLLM, Triton's blocks": (TRITON_BLOCKS, triton_blocks, BLOCKS, {"scales": "block"}),
    "vLLM, Triton's int8": (TRITON_INT8, triton_int8, (*SMALL_INT8, *ROWS), {}),
    "SGLang, rows": (SGL_FP8, sgl_fp8, (*SMALL, *ROWS, BIAS), {"scales": "row", "bias": "1d"}),
    "SGLang, int8": (SGL_INT8, sgl_int8, (*SMALL_INT8, *ROWS), {}),
    "SGLang, blocks": (SGL_BLOCKS, sgl_blocks, BLOCKS, {"scales": "block"}),
    "MSLK, int4": (MSLK_INT4, mslk, SMALL_INT4, INT4),
}
