"""What Inductor's code for a GPU has of GEMMs with int4 weights, generated where there is none."""

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import make
from kit.inductor import WITHOUT_GPU

from gemmdb import Config, Problem

pytestmark = WITHOUT_GPU
BASE = {"block_m": 16, "block_n": 64, "block_k": 128, "split_k": 1, "scaled": "weights", "warps": 4, "stages": 4}
CONFIGS = {
    "ours": Config.of("triton", "int4", **BASE),
    "split": Config.of("triton", "int4", **{**BASE, "split_k": 2}),
    "sums": Config.of("triton", "int4", **{**BASE, "scaled": "sums"}),
    "columns": Config.of("triton", "int4", **{**BASE, "scaled": "sums", "block_n": 128, "warps": 2}),
    "skinny": make("int4_skinny"),
    "dequantised": Config.of("aten", "dequantised"),
    "ATen": Config.of("aten", "default"),
    "default": None,
}
N, K, G = 136, 512, 128
MEASURED = [
    {}, {"fusion": "pointwise"}, {"bias": "1d"}, {"m": 1}, {"packing": "low-first", "bias": "1d"},
    {"packing": "high-first", "zeros": "uint8", "dtype": "fp16"}, {"packing": "low-first", "zeros": "bf16", "m": 1},
    {"packing": "low-first", "zeros": "int8", "fusion": "pointwise:math"}, {"packing": "gptq", "dtype": "fp16"},
    {"packing": "gptq2", "bias": "1d"}, {"packing": "awq", "fusion": "pointwise"}, {"packing": "awq", "m": 1},
]  # fmt: skip


def tiled(x, w, s):
    return torch.relu(torch.ops.aten._weight_int4pack_mm(x, w, G, s))


def in_bytes(x, w, s, z):
    numbers = torch.stack([w & 15, w >> 4], -1).view(N, K // G, G).to(x.dtype)
    return torch.nn.functional.linear(x, ((numbers - z.unsqueeze(-1)) * s.unsqueeze(-1)).view(N, K))


def found():
    """By program and config: the problem, what was taken, why not what was asked, and the kernels. Called in a process
    that pretends to have a GPU."""
    from kit import no_gpu

    bf16 = torch.bfloat16
    programs = {
        "tiled": (tiled, (5, K, bf16), (N // 8, K // 128, 32, 4, torch.int32), (K // G, N, 2, bf16)),
        "bytes": (in_bytes, (5, K, bf16), (N, K // 2, torch.uint8), (N, K // G, bf16), (N, K // G, torch.uint8)),
    }
    answers = {}
    for name, (program, *inputs) in programs.items():
        for config, value in CONFIGS.items():
            code, seen = no_gpu.output_code(program, value, *inputs)
            (event,) = seen or [None]
            said = ["", "", ""] if event is None else [event.problem, event.config, event.note]
            calls = [call for call in ("_weight_int4pack_mm.default(",) if call in code]
            answers[f"{name} {config}"] = [*said, no_gpu.kernels(code), calls]
    return answers | {"measured": list(_measured())}


def _measured():
    """Why the program that a build measures is another problem in Inductor's eyes, for those where it is."""
    from gemmdb.errors import GemmdbError
    from gemmdb.generators.measure.cuda import emitted

    for rest in MEASURED:
        problem = Problem.gemm("mixed_mm", **{"m": 5, "n": N, "k": K, "weight_dtype": "int4", **rest})
        ours = "columns" if problem.int4 is not None and problem.int4.packing == "awq" else "ours"
        for config in (CONFIGS["ATen"], CONFIGS[ours]):
            try:
                emitted.generate(problem, config)
            except GemmdbError as error:
                yield problem.text, config.text, str(error)


def test_a_build_measures_the_problems_that_it_means(answers):
    assert answers["measured"] == []


@pytest.mark.parametrize("config", ["ours", "split", "sums", "skinny"])
@pytest.mark.parametrize(("program", "described"), [
    ("tiled", f"fusion=pointwise fp32=ieee acc=fp32 reduced=1 deterministic=0 constant=0 group={G} zeros=bf16"
              " packing=tinygemm8"),
    ("bytes", f"fusion=none fp32=ieee acc=fp32 reduced=1 deterministic=0 constant=0 group={G} zeros=uint8"
              " packing=low-first"),
])  # fmt: skip
def test_our_kernel_is_all_there_is(answers, program, described, config):
    problem, taken, note, kernels, calls = answers[f"{program} {config}"]
    assert problem.startswith(f"mixed_mm m=5 n={N} k={K} a=bf16:row:8 b=int4:col:16 out=bf16 ")
    assert problem.endswith(described)
    assert (taken, note, calls) == (CONFIGS[config].text, "", [])
    assert [name.startswith("triton_tem_") for name in kernels] == [True]


def test_a_tiled_weight_is_dequantised_for_aten(answers):
    _, taken, note, kernels, calls = answers["tiled dequantised"]
    assert (taken, note, calls) == (CONFIGS["dequantised"].text, "", [])
    assert kernels == ["triton_poi_fused__weight_int4pack_mm_0", "triton_poi_fused_relu_1", "extern_kernels.mm"]


def test_a_program_that_dequantises_keeps_its_own_kernels(answers):
    _, taken, note, kernels, _ = answers["bytes dequantised"]
    assert taken == CONFIGS["ATen"].text
    assert "the program dequantises the weight itself" in note
    assert kernels == answers["bytes default"][3]
    assert kernels[-1] == "extern_kernels.mm"


@pytest.mark.parametrize("program", ["tiled", "bytes"])
def test_aten_is_what_default_mode_runs(answers, program):
    assert answers[f"{program} ATen"][3:] == answers[f"{program} default"][3:]
    assert answers["tiled ATen"][4] == ["_weight_int4pack_mm.default("]
