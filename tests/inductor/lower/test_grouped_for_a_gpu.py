"""GEMMs of groups in Inductor's code for a GPU, generated where there is none: which kernel each becomes, and why
not."""

import pytest

torch = pytest.importorskip("torch")

from kit import gpu
from kit.inductor import WITHOUT_GPU

from gemmdb import Config

pytestmark = WITHOUT_GPU
CONFIGS = {
    "pointer": gpu.make("grouped"), "swapped": gpu.make("grouped", swap=1), "TMA": gpu.make("grouped", load="tma"),
    "flat": gpu.make("grouped", load="tma", flatten=1), "sliced": gpu.make("grouped", split_k=2),
    "Inductor's": Config.of(
        "triton", "inductor_grouped", block_m=16, block_n=64, block_k=64, group_m=8, warps=4, stages=3
    ),
}  # fmt: skip


def experts(x, w, offs):
    return torch._grouped_mm(x, w.transpose(-2, -1), offs=offs)


def weighted(x, w, offs, s):
    return experts(x, w, offs) * s


def gradient(x, y, offs):
    return torch._grouped_mm(x.t(), y, offs=offs)


def scaled(x, w, scale_a, scale_b, offs):
    return torch._scaled_grouped_mm(x, w.transpose(-2, -1), scale_a, scale_b, offs=offs, use_fast_accum=True)


def scaled_exactly(x, w, scale_a, scale_b, offs):
    return torch._scaled_grouped_mm(x, w.transpose(-2, -1), scale_a, scale_b, offs)


def scaled_weighted(*inputs):
    return torch.relu(scaled(*inputs))


def computed_scales(x, w, offs):
    """As where activations are quantised in the same graph."""
    return scaled(x.to(fp8), w.to(fp8), x.abs().amax(1).float(), w.abs().amax(2).float(), offs)


bf16, fp8 = torch.bfloat16, torch.float8_e4m3fn
TOKENS, OFFSETS = (64, 256, bf16), (8, torch.int32)
FP8 = (64, 256, fp8), (8, 512, 256, fp8), (64, torch.float32), (8, 512, torch.float32), OFFSETS
PROGRAMS = {
    "experts": (experts, (TOKENS, (8, 512, 256, bf16), OFFSETS)),
    "weighted": (weighted, (TOKENS, (8, 512, 256, bf16), OFFSETS, (64, 1, bf16))),
    "gradient": (gradient, (TOKENS, (64, 512, bf16), OFFSETS)),
    # All matrices together have more than 2**32 elements.
    "far apart": (experts, (TOKENS, (1023, 2**15, 256, bf16), (1023, torch.int32))),
    "odd columns": (experts, (TOKENS, (8, 510, 256, bf16), OFFSETS)),
    "fp8": (scaled, FP8),
    "fp8, in fp32": (scaled_exactly, FP8),
    "fp8, weighted": (scaled_weighted, FP8),
    "fp8, computed": (computed_scales, (TOKENS, (8, 512, 256, bf16), OFFSETS)),
}  # fmt: skip
BEYOND = "rows beyond the last group are not stored, but what is fused may need them"
REFUSED = {
    **{(f"{program}weighted", name): BEYOND for program in ("", "fp8, ") for name in ("flat", "Inductor's")},
    ("gradient", "sliced"): "the groups divide K already",
    ("gradient", "flat"): "flattened loops need groups of one length",
    **{("odd columns", name): "torch pads the rows of its output to multiples of 16 bytes" for name in CONFIGS},
}


def found():
    """By program and config: the problem, why the config was not taken, the kernels. Called in a process that pretends
    to have a GPU."""
    from kit import no_gpu

    answers = {}
    for program, (model, inputs) in PROGRAMS.items():
        for name, config in CONFIGS.items():
            code, (seen,) = no_gpu.output_code(model, config, *inputs)
            answers[f"{program}, {name}"] = seen.problem, seen.note, no_gpu.kernels(code)
    return answers


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_gemm_of_groups_is_one_kernel_or_atens(program, name, answers):
    problem, note, kernels = answers[f"{program}, {name}"]
    reason = REFUSED.get((program, name), "")
    assert problem.startswith("grouped_mm m=256 n=512 k=64 " if program == "gradient" else "grouped_mm m=64 ")
    assert note == reason
    fp8 = program.startswith("fp8")
    assert (" scales=row " in problem, " fast=1 " in problem) == (fp8, fp8 and "fp32" not in program)
    if reason:
        assert f"extern_kernels.{'_scaled' if fp8 else ''}_grouped_mm" in kernels
    else:
        others = [kernel for kernel in kernels if not kernel.startswith("triton_tem_fused_")]
        assert len(kernels) - len(others) == 1
        assert bool(others) == (program == "fp8, computed")
        assert not any(kernel.startswith("extern_kernels") for kernel in others)
