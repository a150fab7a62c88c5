"""The code that Inductor makes for a GPU of GEMMs in one kernel, generated where there is none."""

import pytest

torch = pytest.importorskip("torch")

from kit.inductor import WITHOUT_GPU

pytestmark = WITHOUT_GPU
K = 512


def plain(x, first, second):
    return torch.nn.functional.linear(x, first).relu() * torch.nn.functional.linear(x, second)


def fp8(x, first, scale, second, other):
    from kit.horizontal import fp8_linear

    return fp8_linear(x, first, scale).relu() * fp8_linear(x, second, other)


def fp8_biased(x, first, scale, second, other, bias, more):
    from kit.horizontal import fp8_linear

    return fp8_linear(x, first, scale, bias).relu() * fp8_linear(x, second, other, more)


def int4(x, first, scale, second, other):
    mm = torch.ops.aten._weight_int4pack_mm
    return mm(x, first, 128, scale).relu() * mm(x, second, 128, other)


def found():
    """By program: the kernels, the notes of the GEMMs, and the code. Every group becomes one kernel. Called in a
    process that pretends to have a GPU."""

    from kit import gpu, no_gpu
    from kit.horizontal import NARROW, session

    import gemmdb.inductor
    from gemmdb.inductor.benchmark import rules
    from gemmdb.inductor.benchmark.horizontal import HorizontalJob, Timed
    from gemmdb.inductor.entry import active

    HorizontalJob.begin = lambda job, carry_out: None
    HorizontalJob.finish = lambda job: Timed(5.0, 10.0)
    rules.device_rejection = lambda device: None
    bf16, weight = torch.bfloat16, (64, K, torch.float8_e4m3fn)
    scale, bias = (64, 1, torch.float32), (64, torch.bfloat16)
    programs = {
        "plain": (plain, (8, K, bf16), (64, K, bf16), (64, K, bf16)),
        "fp8": (fp8, (2, 4, K, bf16), weight, scale, weight, scale),
        "fp8 with biases": (fp8_biased, (2, 4, K, bf16), weight, scale, weight, scale, bias, bias),
    }
    tiled, numbers = (8, K // 128, 32, 4, torch.int32), (K // 128, 64, 2, bf16)
    programs["int4"] = (int4, (8, K, bf16), tiled, numbers, tiled, numbers)
    answers = {}
    gemmdb.inductor.enable()
    for name, (program, *inputs) in programs.items():
        kernel = gpu.make("int4_skinny") if name == "int4" else NARROW
        with active.use(session(us=0.1, config=kernel)):
            code, events = no_gpu.output_code(program, None, *inputs)
        kernels, notes = no_gpu.kernels(code), [event.note for event in events]
        answers[name] = {"kernels": kernels, "notes": notes, "code": code}
    return answers


@pytest.mark.parametrize("name", ["plain", "fp8", "fp8 with biases", "int4"])
def test_one_kernel_multiplies(answers, name):
    found = answers[name]
    assert found["notes"] == ["one kernel for 2 GEMMs"] * 2
    assert not any("extern_kernels" in kernel for kernel in found["kernels"])
    assert sum("tem_" in kernel for kernel in found["kernels"]) == 1


@pytest.mark.parametrize("name", ["fp8", "fp8 with biases"])
def test_the_activation_is_quantised_once(answers, name):
    found = answers[name]
    assert len([kernel for kernel in found["kernels"] if "amax" in kernel]) == 1
    assert "a_scale + idx_m" in found["code"]
