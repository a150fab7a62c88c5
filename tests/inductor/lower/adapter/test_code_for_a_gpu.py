"""The kernels of Inductor's code for a GPU, generated where there is none: what is fused into a GEMM's kernel."""

import pytest

torch = pytest.importorskip("torch")

from kit import gpu
from kit.inductor import WITHOUT_GPU
from torch.nn.functional import gelu, linear, rms_norm, silu

pytestmark = WITHOUT_GPU
CONFIGS = {
    "tile": gpu.make("tile"), "swapped": gpu.make("tile", swap=1), "TMA": gpu.make("tile", load="tma"),
    "fixup": gpu.make("tile", split_k=3, reduce="fixup"), "narrow": gpu.make("narrow", split_k=2),
    "persistent": gpu.make("persistent"),
}  # fmt: skip


def heads(y):
    return y.view(2, 12, 4, 64).transpose(1, 2)


# Each takes the output y [2, 12, 256] of a GEMM and a tensor r of its size.
BEHIND = {
    "relu": (lambda y, r: y.relu(), "pointwise", 0),
    "by heads": (lambda y, r: heads(y * 0.125).contiguous(), "pointwise:permuted", 0),
    "transposed": (lambda y, r: y.relu().transpose(1, 2).contiguous(), "pointwise:transposed", 0),
    "a gate, transposed": (
        lambda y, r: (silu(r) * y).transpose(1, 2).contiguous(), "pointwise:math:reads1:transposed", 0
    ),
    "kept, by heads": (lambda y, r: (heads(y * 0.125).contiguous(), y), "pointwise:kept:permuted", 0),
    "two orders": (lambda y, r: (gelu(y), heads(y * 0.125).contiguous()), "pointwise:math:permuted", 0),
    "one after the other": (
        lambda y, r: (lambda z: (z, heads(z * 0.125).contiguous()))(gelu(y) + r), "pointwise:math:reads1:permuted", 0
    ),
    "wider, by heads": (lambda y, r: heads(y).float().contiguous(), "pointwise:permuted:fp32", 0),
    "norm": (lambda y, r: rms_norm(y + r, (256,)), "none", 1),
    "softmax of columns": (lambda y, r: torch.softmax((y * 0.5).transpose(1, 2).contiguous(), -1), "none", 1),
}  # fmt: skip
"""What follows a linear, its class, and how many kernels run after the GEMM's."""


def model(what):
    return lambda x, w, r: BEHIND[what][0](linear(x, w), r)


def scaled(x, rows, w, columns):
    """An int8 linear with a bias as torchao writes it, and SiLU."""
    y = (torch._int_mm(x, w.t()) * rows).to(torch.bfloat16) * columns
    return silu((y + columns.to(torch.bfloat16)).to(torch.bfloat16))


def weight_only(x, w, s):
    """A linear of a weight that is stored in fp8, as torchao's Float8WeightOnlyConfig leaves it."""
    return x @ (w.t().to(x.dtype) * s.t())


TORCHAO = {
    "coordinate_descent_tuning": True, "coordinate_descent_check_all_directions": True,
    "force_fuse_int_mm_with_mul": True, "epilogue_fusion": True,
}  # fmt: skip
"""What torchao's `quantize_` sets."""


def found():
    """By config and what follows: the class of the problem, why the config was not taken, the kernels. Called in a
    process that pretends to have a GPU."""
    from kit import no_gpu

    bf16 = torch.bfloat16
    inputs = (2, 12, 512, bf16), (256, 512, bf16), (2, 12, 256, bf16)
    answers = {}
    for name, config in CONFIGS.items():
        for what in BEHIND if name == "tile" else ("by heads", "transposed"):
            code, seen = no_gpu.output_code(model(what), config, *inputs)
            fusions = [event.problem.partition(" fusion=")[2].split()[0] for event in seen]
            answers[f"{name}, {what}"] = fusions, [event.note for event in seen], no_gpu.kernels(code)
    inputs = (48, 1040, torch.int8), (48, 1, bf16), (1008, 1040, torch.int8), (1008, torch.float32)
    for name, flags in {"plain": {}, "torchao's flags": TORCHAO}.items():
        with torch._inductor.config.patch(**flags):
            code, seen = no_gpu.output_code(scaled, CONFIGS["tile"], *inputs)
        answers[name] = [event.problem for event in seen], [event.note for event in seen], no_gpu.kernels(code)
    inputs = (4, 512, bf16), (256, 512, torch.float8_e4m3fn), (256, 1, bf16)
    for name in (None, *CONFIGS):
        code, seen = no_gpu.output_code(weight_only, CONFIGS.get(name), *inputs)
        weight = [line for line in code.splitlines() if "empty_strided_cuda((512, 256)" in line]
        answers[f"{name}, weight"] = weight, [(event.problem, event.note) for event in seen]
    for dtype in (bf16, torch.float16, torch.float32):
        inputs = (48, 512, dtype), (256, 512, dtype), (256, dtype)
        _, seen = no_gpu.output_code(lambda x, w, b: gelu(linear(x, w, b)), CONFIGS["tile"], *inputs)
        answers[str(dtype)] = [event.problem for event in seen]
    return answers


@pytest.mark.parametrize("what", BEHIND)
def test_what_becomes_part_of_the_gemms_kernel(what, answers):
    _, fusion, others = BEHIND[what]
    fusions, notes, kernels = answers[f"tile, {what}"]
    assert (fusions, notes) == ([fusion], [""])
    assert [name.startswith("triton_tem_") for name in kernels] == [True] + others * [False]


@pytest.mark.parametrize("what", ["by heads", "transposed"])
@pytest.mark.parametrize("name", CONFIGS)
def test_each_kernel_stores_in_another_order(name, what, answers):
    fusions, notes, kernels = answers[f"{name}, {what}"]
    assert (fusions, notes, len(kernels)) == ([BEHIND[what][1]], [""], 1)


@pytest.mark.parametrize("name", ["plain", "torchao's flags"])
def test_an_int8_linear_with_a_bias_is_one_kernel(name, answers):
    (problem,), notes, kernels = answers[name]
    # SiLU computes in fp32, and Inductor before torch 2.13 drops a cast to bf16 that a cast to fp32 follows.
    out = "fp32" if torch.__version__ < "2.13" else "bf16"
    assert problem.startswith(f"int_mm m=48 n=1008 k=1040 a=int8:row:16 b=int8:col:16 out={out} bias=none")
    assert " fusion=scale fp32=ieee acc=int32 " in problem
    assert (notes, len(kernels), kernels[0].startswith("triton_tem_")) == ([""], 1, True)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_computed_weight_is_stored_as_in_default_mode(name, answers):
    """It lies as the fp8 weight does. To store it the other way took decode steps 2% to 4% longer."""
    (weight,), ((problem, note),) = answers[f"{name}, weight"]
    assert "(512, 256), (1, 512)" in weight
    assert answers["None, weight"] == [[weight], []]
    assert " b=bf16:col:8 " in problem
    assert note == ""


@pytest.mark.parametrize(("dtype", "op", "bias"), [
    ("torch.bfloat16", "addmm", "1d:bf16:8"), ("torch.float16", "addmm", "1d:fp16:8"), ("torch.float32", "mm", "none"),
])  # fmt: skip
def test_a_bias_before_a_gelu_stays_with_the_gemm_in_half_precision(dtype, op, bias, answers):
    """Presets and the shipped table hold such layers as Inductor asks for them."""
    (problem,) = answers[dtype]
    assert problem.startswith(f"{op} ")
    assert f" bias={bias} " in problem
    assert " fusion=pointwise:math " in problem
