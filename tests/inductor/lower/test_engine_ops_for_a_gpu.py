"""Opened operators of serving engines as kernels for a GPU: the code, generated where there is none."""

import pytest

torch = pytest.importorskip("torch")

from kit import gpu
from kit.inductor import WITHOUT_GPU

pytestmark = WITHOUT_GPU
NARROW, TILE, BLOCKS = gpu.make("narrow"), gpu.make("tile"), gpu.make("scaled_blocks")


def sgl_fp8(a, w, s, t, bias):
    return torch.ops.sgl_kernel.fp8_scaled_mm(a, w.t(), s, t, torch.bfloat16, bias)


def sgl_int8(a, w, s, t):
    return torch.ops.sgl_kernel.int8_scaled_mm(a, w.t(), s, t, torch.bfloat16, None)


def vllm_int8(a, w, s, t, bias):
    return torch.ops.vllm.int8_scaled_mm_func(a, w.t(), s, t, torch.bfloat16, bias)


def sgl_blocks(a, w, s, t):
    return torch.ops.sgl_kernel.fp8_blockwise_scaled_mm(a, w.t(), s.t(), t.t(), torch.bfloat16).relu()


def vllm_blocks(a, w, s, t):
    return torch.ops.vllm.w8a8_triton_block_scaled_mm_func(a, w, s, t, [128, 128], torch.bfloat16)


def found():
    """By program: the config, why it was not taken, the kernels. Called in a process that pretends to have a GPU."""
    from kit import engine_ops, no_gpu

    import gemmdb.inductor

    fp8, int8, scale, half = torch.float8_e4m3fn, torch.int8, torch.float32, torch.bfloat16
    a, w, rows = (48, 1024), (512, 1024), ((48, 1, scale), (512, 1, scale))
    cases = (
        (sgl_fp8, NARROW, (*a, fp8), (*w, fp8), *rows, (512, half)),
        (sgl_int8, NARROW, (*a, int8), (*w, int8), *rows),
        (vllm_int8, TILE, (*a, int8), (*w, int8), (1, scale), (512, scale), (512, half)),
        (sgl_blocks, BLOCKS, (*a, fp8), (*w, fp8), (8, 48, scale), (4, 8, scale)),
        (vllm_blocks, BLOCKS, (*a, fp8), (*w, fp8), (48, 8, scale), (4, 8, scale)),
    )
    answers = {}
    with engine_ops.loaded("CUDA"):
        gemmdb.inductor.open_ops()
        for program, config, *inputs in cases:
            code, (event,) = no_gpu.output_code(program, config, *inputs)
            answers[program.__name__] = (
                event.config,
                event.note,
                no_gpu.kernels(code),
                "mm.default(" in code or "func.default(" in code,
            )
    return answers


@pytest.mark.parametrize(
    ("program", "config"),
    [(sgl_fp8, NARROW), (sgl_int8, NARROW), (vllm_int8, TILE), (sgl_blocks, BLOCKS), (vllm_blocks, BLOCKS)],
)
def test_a_call_is_one_kernel_with_what_follows(program, config, answers):
    text, note, kernels, called = answers[program.__name__]
    assert (text, note) == (config.text, "")
    assert [kernel.startswith("triton_tem_") for kernel in kernels] == [True]
    assert not called
