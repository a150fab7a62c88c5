"""`scaled_blocks` under Inductor's template engine: its code for a GPU, generated where there is none."""

import pytest

torch = pytest.importorskip("torch")

from kit import gpu
from kit.devices import H200
from kit.inductor import WITHOUT_GPU

from gemmdb.key.problem import Problem

CONFIGS = {
    "plain": gpu.make("scaled_blocks"), "swapped": gpu.make("scaled_blocks", swap=1),
    "sliced": gpu.make("scaled_blocks", split_k=3), "tall": gpu.make("scaled_blocks", block_m=128, warps=8),
    "ahead": gpu.make("scaled_blocks", blocks=2, split_k=2), "all ahead": gpu.make("scaled_blocks", blocks=4, swap=1),
}  # fmt: skip


def biased(a, w, rows, blocks, bias):
    """As torch wants the scales: those of A along M, those of B along K."""
    return torch._scaled_mm(a, w.t(), rows.t(), blocks.t(), bias, out_dtype=torch.bfloat16)


def product(a, w, rows, blocks):
    return biased(a, w, rows, blocks, None)


def activated(a, w, rows, blocks):
    return torch.nn.functional.silu(product(a, w, rows, blocks))


def found():
    """By program and config: the problem, why the config was not taken, the kernels. Called in a process that pretends
    to have a GPU."""
    from kit import no_gpu

    one, scale = torch.float8_e4m3fn, torch.float32
    inputs = (48, 1024, one), (512, 1024, one), (8, 48, scale), (4, 8, scale)
    answers = {}
    for name, config in CONFIGS.items():
        for program, *more in ((product,), (activated,), (biased, (512, torch.bfloat16))):
            code, seen = no_gpu.output_code(program, config, *inputs, *more)
            (event,) = seen
            answers[f"{program.__name__}, {name}"] = event.problem, event.note, no_gpu.kernels(code)
    return answers


@WITHOUT_GPU
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    ("what", "rest"),
    [("product", {}), ("activated", {"fusion": "pointwise:math"}), ("biased", {"bias": "1d"})],
)
def test_it_is_one_kernel_with_what_follows(what, rest, name, answers):
    problem, note, kernels = answers[f"{what}, {name}"]
    assert problem == Problem.gemm("scaled_mm", m=48, n=512, k=1024, scales="block", **rest).text
    assert note == ""
    assert [kernel.startswith("triton_tem_") for kernel in kernels] == [True]


def test_what_it_takes():
    def asked(**rest):
        return gpu.make("scaled_blocks", split_k=2).rejection(Problem.gemm("scaled_mm", **rest), H200)

    sizes = {"m": 48, "n": 512, "k": 1024}
    assert asked(**sizes, scales="block") is None
    assert asked(**sizes, scales="block", fast_accum=True, bias="1d") is None
    assert "block scales" in str(asked(**sizes, scales="row"))
    assert "fewer than 2 steps" in str(asked(**{**sizes, "k": 128}, scales="block"))
    assert "multiples of 16" in str(asked(**{**sizes, "n": 520}, scales="block"))
    # Triton 3.6 refuses masked loads of fp8 with an integer for what is beyond the end.
    assert "a multiple of 128" in str(asked(**{**sizes, "k": 2000}, scales="block"))
    # A step is whole blocks.
    ahead = gpu.make("scaled_blocks", blocks=4)
    assert ahead.rejection(Problem.gemm("scaled_mm", **{**sizes, "k": 1536}, scales="block"), H200) is None
    partial = Problem.gemm("scaled_mm", **{**sizes, "k": 640}, scales="block")
    assert "a multiple of 512" in str(ahead.rejection(partial, H200))
