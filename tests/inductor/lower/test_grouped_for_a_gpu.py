"""Products of groups in Inductor's code for a GPU, generated where there is none: which kernel each becomes, and why
not."""

import importlib.util

import pytest

torch = pytest.importorskip("torch")

from kit import gpu  # noqa: E402
from kit.inductor import found_without_gpu  # noqa: E402

from gemmdb import Config  # noqa: E402

pytestmark = [
    pytest.mark.skipif(torch.version.cuda is None, reason="needs torch's build for CUDA"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs such code on the GPU that is here"),
]
CONFIGS = {
    "pointer": gpu.make("grouped"), "swapped": gpu.make("grouped", swap=1), "TMA": gpu.make("grouped", load="tma"),
    "flat": gpu.make("grouped", load="tma", flatten=1),
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


bf16 = torch.bfloat16
TOKENS, OFFSETS = (64, 256, bf16), (8, torch.int32)
PROGRAMS = {
    "experts": (experts, (TOKENS, (8, 512, 256, bf16), OFFSETS)),
    "weighted": (weighted, (TOKENS, (8, 512, 256, bf16), OFFSETS, (64, 1, bf16))),
    "gradient": (gradient, (TOKENS, (64, 512, bf16), OFFSETS)),
    # All matrices together have more than 2**32 elements.
    "far apart": (experts, (TOKENS, (1023, 2**15, 256, bf16), (1023, torch.int32))),
    "odd columns": (experts, (TOKENS, (8, 510, 256, bf16), OFFSETS)),
}  # fmt: skip
BEYOND = "rows beyond the last group are not stored, but what is fused may need them"
REFUSED = {
    ("weighted", "flat"): BEYOND,
    ("weighted", "Inductor's"): BEYOND,
    ("gradient", "flat"): "the groups of K have different lengths, and only loops of one length are flattened",
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


@pytest.fixture(scope="module")
def answers():
    return found_without_gpu(__file__)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_product_of_groups_is_one_kernel_or_atens(program, name, answers):
    problem, note, kernels = answers[f"{program}, {name}"]
    reason = REFUSED.get((program, name), "")
    assert problem.startswith("grouped_mm m=256 n=512 k=64 " if program == "gradient" else "grouped_mm m=64 ")
    assert note == reason
    if reason:
        assert "extern_kernels._grouped_mm" in kernels
    else:
        assert [kernel.startswith("triton_tem_fused_") for kernel in kernels] == [True]
