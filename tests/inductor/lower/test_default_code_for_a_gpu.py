"""Where a weight-only GEMM was rewritten because a kernel might have served it, and ATen does: the code for a GPU is
that of default mode."""

import itertools
import re

import pytest

torch = pytest.importorskip("torch")

from gemmdb.inductor.match import ops
from gemmdb.key.int4 import BYTE, PACKED, Int4Format

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
M, N, K, G = 24, 256, 512, 64
BF16, FP32 = torch.bfloat16, torch.float32
linear = torch.nn.functional.linear


def low_first(x, w, s, z):
    numbers = torch.stack([w & 15, w >> 4], -1).view(N, K // G, G).to(x.dtype)
    return ((numbers - z.unsqueeze(-1)) * s.unsqueeze(-1)).view(N, K)


def gptq(x, w, s, z):
    """As the first version of GPTQ unpacks it: by shifts of each word, zero points stored less 1."""
    shift = torch.arange(0, 32, 4, dtype=torch.int32, device=w.device)
    zeros = torch.bitwise_right_shift(z.unsqueeze(2).expand(-1, -1, 8), shift.view(1, 1, -1)).to(torch.int8)
    zeros = torch.bitwise_and(torch.bitwise_and(zeros, 15) + 1, 15).reshape(-1, 1, N)
    numbers = torch.bitwise_right_shift(w.unsqueeze(1).expand(-1, 8, -1), shift.view(1, -1, 1)).to(torch.int8)
    numbers = torch.bitwise_and(numbers, 15).reshape(-1, G, N)
    return (s.unsqueeze(1) * (numbers - zeros)).reshape(K, N).t()


def stored(packing, zeros="none"):
    """A program with a weight of a packing, and its tensors' sizes and dtypes."""
    own, sizes = Int4Format(G, zeros, packing), PACKED[packing]
    item = torch.uint8 if packing not in ("gptq", "gptq2", "awq") else torch.int32
    scale = FP32 if packing == "byte-fp32" else BF16
    tensors = [(*sizes.sizes(N, K, item.itemsize), item), (*sizes.groups(N, K, G), scale)]
    if zeros == "int4":
        tensors.append((*sizes.groups(N // 8, K, G), torch.int32))
    elif zeros != "none":
        tensors.append((*sizes.groups(N, K, G), getattr(torch, zeros.replace("bf16", "bfloat16"))))

    def weight(x, w, s, z=None):
        return ops.dequantised(w, s, z, own, x.dtype)

    return weight, *tensors


WORDS = [(K // 8, N, torch.int32), (K // G, N, BF16), (K // G, N // 8, torch.int32)]
WEIGHTS = {
    "low first": stored("low-first"),
    "low first, zero points": stored("low-first", "bf16"),
    "low first, zero points in words": stored("low-first", "int4"),
    "high first": stored("high-first", "uint8"),
    "gptq": stored("gptq", "int4"),
    "gptq2": stored("gptq2", "int4"),
    "awq": stored("awq", "int4"),
    "bytes": stored(BYTE),
    "bytes, zero points": stored(BYTE, "uint8"),
    "bytes of fp32 scales": stored("byte-fp32"),
    "written": (low_first, (N, K // 2, torch.uint8), (N, K // G, BF16), (N, K // G, torch.uint8)),
    "written gptq": (gptq, *WORDS),
}


def per_channel(x, w, s):
    return w.to(x.dtype) * s.unsqueeze(1)


INT8 = (N, K, torch.int8)
low, *LOW = WEIGHTS["low first"]
PROGRAMS = {
    **{name: (lambda x, *rest, weight=weight: linear(x, weight(x, *rest)), *tensors)
       for name, (weight, *tensors) in WEIGHTS.items()},
    "an epilogue": (lambda x, w, s: linear(x, WEIGHTS["low first"][0](x, w, s)).relu(), *WEIGHTS["low first"][1:]),
    "a bias": (lambda x, w, s, b: linear(x, low(x, w, s), b), *LOW, (N, BF16)),
    "a bias and an epilogue": (lambda x, w, s, b: linear(x, low(x, w, s), b).relu(), *LOW, (N, BF16)),
    "a bias after it": (lambda x, w, s, b: linear(x, low(x, w, s)) + b, *LOW, (N, BF16)),
    "a bias after it and an epilogue": (lambda x, w, s, b: (linear(x, low(x, w, s)) + b).relu(), *LOW, (N, BF16)),
    "written gptq, a bias": (lambda x, w, s, z, b: linear(x, gptq(x, w, s, z), b), *WORDS, (N, BF16)),
    "int8": (lambda x, w: linear(x, w.to(x.dtype)), INT8),
    "int8, a bias": (lambda x, w, b: linear(x, w.to(x.dtype), b), INT8, (N, BF16)),
    "int8, square": (lambda x, w, b: linear(x, w.to(x.dtype), b), (K, K, torch.int8), (K, BF16)),
    "int8 stored [K, N], a bias": (lambda x, w, b: torch.addmm(b, x, w.to(x.dtype)), (K, N, torch.int8), (N, BF16)),
    "int8, a scale first": (lambda x, w, s: linear(x, per_channel(x, w, s)), INT8, (N, BF16)),
    "int8, a scale first and a bias": (lambda x, w, s, b: linear(x, per_channel(x, w, s), b), INT8, *2 * [(N, BF16)]),
    "int8, one scale first and a bias": (lambda x, w, s, b: linear(x, w.to(x.dtype) * s, b), INT8, (BF16,), (N, BF16)),
    "int8 stored [K, N], one scale first and a bias": (
        lambda x, w, s, b: torch.addmm(b, x, w.to(x.dtype) * s), (K, N, torch.int8), (1, 1, BF16), (N, BF16),
    ),
    "int8, an fp32 scale first and a bias": (
        lambda x, w, s, b: linear(x, per_channel(x, w, s.to(x.dtype)), b), INT8, (N, FP32), (N, BF16),
    ),
}  # fmt: skip


def found():
    """By program, and by whether M is symbolic: the code of default mode, and that of ATen after a miss that was to be
    tuned. Called in a process that pretends to have a GPU."""
    from kit import no_gpu
    from kit.sessions import FakeSession

    from gemmdb.rejected import Rejected
    from gemmdb.settings import Policy

    asked = []

    class Expected(FakeSession):
        """The joint pass is told that each GEMM is to be tuned, the pass after it that there is no time."""

        def tuning_rejection(self, query):
            asked.append(query.problem.text)
            return None if asked.count(query.problem.text) == 1 else Rejected("no time")

    answers = {}
    for (name, (program, *tensors)), m in itertools.product(PROGRAMS.items(), (M, "m")):
        inputs = [(m, K, BF16), *tensors]
        asked.clear()
        session = Expected(policy=Policy(on_miss="live", live_s=5.0))
        code, seen = no_gpu.code_in(session, program, *inputs)
        default, _ = no_gpu.code_in(None, program, *inputs)
        events = [(event.problem.partition(" ")[0], event.config, asked.count(event.problem)) for event in seen]
        answers[f"{name}, m={m}"] = [events, code, default]
    return answers


def essence(code):
    """What of an output code takes time: the kernels and the calls, without their names."""
    code = "\n".join(line for line in code.splitlines() if not line.lstrip().startswith("#"))
    names = {}
    code = re.sub(r"\btriton_\w+_fused_\w+", lambda name: names.setdefault(name[0], f"kernel{len(names)}"), code)
    made = re.findall(r"async_compile\.triton\(.*?'''\)|async_compile\.triton\(.*?''', device_str='cuda'\)", code, re.S)
    body = code.partition("async_compile.wait")[2]
    calls = re.findall(r"^ *(?:\w+ = empty_strided|kernel\d+\.run|extern_kernels|torch\.ops).*$", body, re.M)
    return made, calls


@pytest.mark.parametrize("m", [M, "m"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_aten_after_a_miss_is_what_default_mode_runs(answers, program, m):
    events, code, default = answers[f"{program}, m={m}"]
    assert events == [["mixed_mm", "aten:default", 2]]
    made, calls = essence(default)
    assert made
    assert any("extern_kernels.mm" in call or "extern_kernels.addmm" in call for call in calls)
    assert essence(code) == (made, calls)
