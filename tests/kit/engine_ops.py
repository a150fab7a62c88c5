"""Operators of serving engines, as the engines declare them, with plain implementations for a CPU.

This module imports torch: only tests that need torch import it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
DECLARED = {
    # The texts of the wheels of vLLM 0.33.0 and sgl-kernel 0.3.21.
    "_C::cutlass_scaled_mm": "(Tensor! out, Tensor a,                  Tensor b, Tensor a_scales,"
    "                  Tensor b_scales, Tensor? bias) -> ()",
    "vllm::int8_scaled_mm_func": "(Tensor qx, Tensor weight, Tensor x_scale, Tensor weight_scale,"
    " ScalarType output_dtype, Tensor? bias=None) -> Tensor",
    "vllm::w8a8_triton_block_scaled_mm_func": "(Tensor qx, Tensor weight, Tensor x_scale, Tensor weight_scale,"
    " SymInt[] block_size, ScalarType output_dtype) -> Tensor",
    "sgl_kernel::fp8_scaled_mm": "(Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor scales_b,"
    " ScalarType out_dtype, Tensor? bias) -> Tensor",
    "sgl_kernel::int8_scaled_mm": "(Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor scales_b,"
    " ScalarType out_dtype, Tensor? bias) -> Tensor",
    "sgl_kernel::fp8_blockwise_scaled_mm": "(Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor scales_b,"
    " ScalarType out_dtype) -> Tensor",
    # The text of MSLK 1.1.0.
    "mslk::bf16i4bf16_rowwise": "(Tensor X, Tensor W, Tensor w_scale_group, Tensor w_zero_group) -> Tensor",
}
CUTLASS, TRITON_INT8, TRITON_BLOCKS, SGL_FP8, SGL_INT8, SGL_BLOCKS, MSLK_INT4 = DECLARED


def reference(a: Any, b: Any, scale_a: Any, scale_b: Any, dtype: Any, bias: Any = None) -> Any:
    """(A * scale_a) @ (B * scale_b) + bias, with numbers, vectors or blocks of scales; B is [K, N]."""
    exact = a.dtype == torch.int8
    (m, k), n = a.shape, b.shape[1]
    if scale_a.numel() not in (1, m) or scale_b.numel() not in (1, n):
        wide = scale_b.repeat_interleave(128, 0)[:k].repeat_interleave(128, 1)[:, :n]
        result = (a.float() * scale_a.repeat_interleave(128, 1)[:, :k]) @ (b.float() * wide)
    else:
        result = (a.int() @ b.int()).float() if exact else a.float() @ b.float()
        result = result * scale_a.reshape(-1, 1) * scale_b.reshape(1, -1)
    return (result if bias is None else result + bias.float()).to(dtype)


def _into(out: Any, a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any) -> None:
    out.copy_(reference(a, b, scale_a, scale_b, out.dtype, bias))


def _turned(a: Any, b: Any, scale_a: Any, scale_b: Any, block: Any, dtype: Any) -> Any:
    return reference(a, b.t(), scale_a, scale_b.t(), dtype)


def _rows(a: Any, b: Any, scale_a: Any, scale_b: Any, dtype: Any, bias: Any = None) -> Any:
    return reference(a, b, scale_a, scale_b, dtype, bias)


def _shape(a: Any, b: Any, scale_a: Any, scale_b: Any, dtype: Any, bias: Any = None) -> Any:
    return a.new_empty((a.shape[0], b.shape[1]), dtype=dtype)


def _turned_shape(a: Any, b: Any, scale_a: Any, scale_b: Any, block: Any, dtype: Any) -> Any:
    return a.new_empty((a.shape[0], b.shape[0]), dtype=dtype)


def _int4(a: Any, w: Any, scale: Any, zeros: Any) -> Any:
    """A @ (number * scale + zero): numbers of four bits with a sign, the first of two in the low bits of a byte."""
    numbers = torch.stack(((w << 4) >> 4, w >> 4), dim=-1).flatten(1)
    size = numbers.shape[1] // scale.shape[0]
    scale, zeros = (one.t().float().repeat_interleave(size, 1) for one in (scale, zeros))
    return (a.float() @ (numbers.float() * scale + zeros).t()).to(BF16)


def _int4_shape(a: Any, w: Any, scale: Any, zeros: Any) -> Any:
    return a.new_empty((a.shape[0], w.shape[0]))


_COMPUTED: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    CUTLASS: (_into, lambda *_: None),
    TRITON_BLOCKS: (_turned, _turned_shape),
    MSLK_INT4: (_int4, _int4_shape),
}


@contextmanager
def loaded(device: str = "CPU") -> Iterator[None]:
    """Inside the block the operators exist, with an implementation for `device`."""
    libraries = [_defined(whole, schema, device) for whole, schema in DECLARED.items()]
    try:
        yield
    finally:
        for library in libraries:
            library._destroy()


def _defined(whole: str, schema: str, device: str) -> Any:
    namespace, _, name = whole.partition("::")
    library = torch.library.Library(namespace, "FRAGMENT")
    compute, shape = _COMPUTED.get(whole, (_rows, _shape))
    library.define(name + schema)
    library.impl(name, compute, device)
    library.impl(name, shape, "Meta")
    return library


def scaled_mm(a: Any, b: Any, scale_a: Any, scale_b: Any, dtype: Any = BF16, bias: Any = None) -> Any:
    """As vLLM's Python layer calls its operator: with memory that it has just allocated."""
    out = torch.empty((a.shape[0], b.shape[1]), dtype=dtype, device=a.device)
    torch.ops._C.cutlass_scaled_mm(out, a, b, scale_a, scale_b, bias)
    return out


def integers(*sizes: int) -> Any:
    return torch.randint(-128, 128, sizes, dtype=torch.int8)
