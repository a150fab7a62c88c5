"""GEMMs with weights of GPTQ, AWQ, compressed-tensors and MXFP4 on a GPU: our kernel in its forms, and programs that
unpack them."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch._inductor.config as inductor_config
from kit.gpu import make, measure_forms, served_as_one_choice, solved

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.kernels.config import ATEN
from gemmdb.key.int4 import E2M1, PACKED, PACKINGS

pytestmark = [
    pytest.mark.usefixtures("clean"),
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0),
        reason="needs an NVIDIA GPU of compute capability 8.0",
    ),
]
AWQ = [0, 4, 1, 5, 2, 6, 3, 7]


def int4(**rest: Any) -> Problem:
    return Problem.gemm("mixed_mm", **{"m": 5, "n": 264, "k": 512, "weight_dtype": "int4", **rest})


PROBLEMS = [
    *(int4(packing=packing, group=group, dtype=dtype) for packing in ("gptq", "gptq2", "awq")
      for group in (32, 64, 128) for dtype in ("bf16", "fp16")),
    *(int4(packing=packing, m=m, n=n, k=k) for packing in ("gptq", "awq")
      for m, n, k in ((1, 1032, 4224), (16, 4096, 640), (40, 520, 1152), (200, 512, 512))),
    *(int4(packing="low-first", zeros="int4", group=group, dtype=dtype) for group in (32, 128) for dtype in
      ("bf16", "fp16")),
    int4(packing="low-first", zeros="int4", m=1, n=1032, k=4224),
    *(int4(weight_dtype="fp4_e2m1", m=m, n=n, k=k) for m, n, k in ((1, 1032, 4224), (16, 4096, 640), (40, 520, 1184),
      (200, 512, 512))),
    int4(packing="gptq", fusion="pointwise", m=33), int4(packing="awq", bias="1d", m=9), int4(packing="awq", group=256),
]  # fmt: skip
FORMS = [
    make("int4"), make("int4", split_k=2), make("int4", block_n=128, block_k=256, warps=8),
    make("int4", block_m=8, warps=2), make("int4", block_m=64, block_n=128, block_k=64),
    make("int4", scaled="sums"), make("int4", scaled="sums", block_n=128, warps=2, split_k=2),
    make("int4", scaled="sums", block_n=128, block_m=8, warps=2, stages=5),
    make("int4", scaled="sums", block_n=64, block_m=32, warps=1, block_k=64),
    make("int4", scaled="sums", block_n=256, split_k=2),
    make("int4", scaled="sums", block_n=256, block_m=64, block_k=64),
    make("int4", block_n=128, block_k=64, warps=8, stages=5), make("int4", block_n=32, block_k=256, warps=2),
    make("int4", order="memory"), make("int4", order="memory", block_m=8, warps=2, split_k=3),
    make("int4", order="memory", scaled="sums", block_k=32),
    make("int4", order="memory", block_m=64, block_n=128, stages=4, split_k=2),
    make("int4", order="memory", block_m=64, block_n=128, block_k=64, warps=8, stages=5, split_k=2),
    make("int4_skinny", lean=1, block_n=64), make("int4_skinny", lean=1, block_n=64, activations="shared", warps=8),
    make("int4_skinny", lean=1, block_n=32, stages=2, activations="ahead"),
    make("int4_skinny", lean=1, block_n=32, stages=2, activations="shared", next="before", warps=2),
    make("int4_skinny", lean=1, block_n=16, stages=2, warps=8), make("int4_skinny", lean=1, block_n=32),
    make("int4", scaled="sums", block_n=256, block_k=32), make("int4", scaled="sums", block_n=128, block_k=32, warps=2),
]  # fmt: skip
SERVED = [
    (config, problem) for problem in (PROBLEMS[4], PROBLEMS[16], PROBLEMS[27], PROBLEMS[-4], PROBLEMS[-3], PROBLEMS[-2])
    for config in (FORMS[0], FORMS[6], FORMS[9], make("int4_skinny", lean=1, block_n=64), ATEN)
]  # fmt: skip


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.text)
def test_every_form_of_the_kernel_is_right(problem: Problem) -> None:
    measure_forms(problem, FORMS)


@pytest.mark.parametrize(("config", "problem"), SERVED, ids=lambda value: getattr(value, "text", value))
def test_a_config_is_served_as_one_choice(config: Config, problem: Problem) -> None:
    served_as_one_choice(config, problem)


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_build_generates_the_code_of_a_compile(packing: str) -> None:
    """The winner of a build is timed as that code."""
    from gemmdb.generators.measure.cuda.artifacts import Emission

    own = PACKED[packing].dtype if packing in PACKED else "int4"
    problem = int4(m=16, k=1024, packing=packing, weight_dtype=own or "int8")
    config = make("int4", scaled="sums", block_n=256, block_k=64) if packing == "awq" else make("int4")
    config = config if own else make("groupwise", dequant="bits")
    assert Emission(problem, config).build(90).failure == ""


class Layer(torch.nn.Module):
    """A linear as checkpoints of GPTQ or AWQ have it, with the dequantisation of their libraries in torch."""

    def __init__(self, packing: str, n: int, k: int, group: int = 128, dtype: Any = torch.bfloat16) -> None:
        super().__init__()
        self.packing, self.group = packing, group
        sizes = (k, n // 8) if packing == "awq" else (k // 8, n)
        for name, one in (("qweight", sizes), ("qzeros", (k // group, n // 8))):
            self.register_buffer(name, torch.randint(-(2**31), 2**31 - 1, one, dtype=torch.int32, device="cuda"))
        self.register_buffer("scales", torch.rand(k // group, n, device="cuda").to(dtype) / 64)

    def forward(self, x: Any) -> Any:
        zeros, scales = self.columns(self.qzeros), self.scales
        if self.packing == "awq":
            zeros, scales = (one.repeat_interleave(self.group, dim=0) for one in (zeros, scales))
            return torch.matmul(x, (self.columns(self.qweight) - zeros) * scales)
        shifts = torch.arange(0, 32, 4, dtype=torch.int32, device="cuda")[None, :, None]
        numbers = torch.bitwise_right_shift(self.qweight.unsqueeze(1).expand(-1, 8, -1), shifts).to(torch.int8) & 15
        zeros = (zeros + 1 & 15) if self.packing == "gptq" else zeros
        n = numbers.shape[-1]
        weight = scales.reshape(-1, 1, n) * (numbers.reshape(-1, self.group, n) - zeros.reshape(-1, 1, n))
        return torch.matmul(x, weight.reshape(-1, n))

    def columns(self, words: Any) -> Any:
        """The numbers of words with eight columns each."""
        shifts = torch.arange(0, 32, 4, device="cuda")
        numbers = torch.bitwise_right_shift(words[:, :, None], shifts[None, None, :]).to(torch.int8)
        numbers = numbers.view(words.shape[0], -1)
        if self.packing == "awq":
            order = torch.arange(numbers.shape[1], device="cuda").view(-1, 8)[:, AWQ].reshape(-1)
            numbers = numbers[:, order]
        return numbers & 15


class InOrder(torch.nn.Module):
    """A linear of GPTQ with `desc_act`: the rows of a group lie anywhere."""

    def __init__(self, n: int, k: int, group: int = 128) -> None:
        super().__init__()
        self.n = n
        for name, one in (("qweight", (k // 8, n)), ("qzeros", (k // group, n // 8))):
            self.register_buffer(name, torch.randint(-(2**31), 2**31 - 1, one, dtype=torch.int32, device="cuda"))
        self.register_buffer("scales", torch.rand(k // group, n, device="cuda").bfloat16() / 64)
        self.register_buffer("g_idx", (torch.arange(k, device="cuda") // group)[torch.randperm(k, device="cuda")].int())
        self.register_buffer("shifts", torch.arange(0, 32, 4, dtype=torch.int32, device="cuda"), persistent=False)

    def forward(self, x: Any) -> Any:
        shifts, groups = self.shifts, self.g_idx.long()
        zeros = (torch.bitwise_right_shift(self.qzeros[:, :, None], shifts).to(torch.int8) & 15).reshape(-1, self.n)
        numbers = torch.bitwise_right_shift(self.qweight[:, None, :], shifts[None, :, None]).to(torch.int8) & 15
        return torch.matmul(x, self.scales[groups] * (numbers.reshape(-1, self.n) - zeros[groups]))


class Compressed(torch.nn.Module):
    """A linear as compressed-tensors has it, with zero points, and its dequantisation."""

    def __init__(self, n: int, k: int, group: int = 128) -> None:
        super().__init__()
        self.group = group
        for name, one in (("packed", (n, k // 8)), ("zeros", (n // 8, k // group))):
            self.register_buffer(name, torch.randint(-(2**31), 2**31 - 1, one, dtype=torch.int32, device="cuda"))
        self.register_buffer("scales", torch.rand(n, k // group, device="cuda").bfloat16() / 64)

    def forward(self, x: Any) -> Any:
        zeros = self.numbers(self.zeros.transpose(0, 1)).transpose(0, 1).unsqueeze(-1)
        numbers = self.numbers(self.packed).unflatten(-1, (-1, self.group)).to(x.dtype) - zeros.to(x.dtype)
        return torch.nn.functional.linear(x, (numbers * self.scales.unsqueeze(-1)).flatten(start_dim=-2))

    def numbers(self, words: Any) -> Any:
        halves = words.contiguous().view(torch.uint8)
        halves = torch.stack((halves & 15, halves >> 4), dim=-1)
        return halves.view(torch.int8).view(len(words), -1) - 8


@pytest.mark.parametrize("packing", ["gptq", "gptq2", "awq", "compressed"])
def test_a_gated_layer(kit: Any, packing: str) -> None:
    config = make("int4", scaled="sums", block_n=128, warps=2, split_k=2)
    sizes = ((512, 256), (512, 256), (256, 512))
    gate, up, down = (Compressed(*one) if packing == "compressed" else Layer(packing, *one) for one in sizes)
    x = kit.rand(2, 3, 256)

    def model(x: Any) -> Any:
        return down(torch.nn.functional.silu(gate(x)) * up(x))

    with torch.no_grad():
        found, _ = kit.compiled(model, x, config=config)
        kit.close(found, model(x))
    assert kit.served() == [config.text] * 3


@pytest.mark.parametrize("packing", ["gptq", "awq"])
def test_one_kernel_serves_any_number_of_rows(kit: Any, packing: str) -> None:
    layer, config = Layer(packing, 512, 256), make("int4", scaled="sums", block_n=128, warps=2)
    compiled = torch.compile(layer)
    with gemmdb.inductor.force(config), torch.no_grad():
        for m in (24, 9, 40):
            x = kit.rand(m, 256)
            torch._dynamo.mark_dynamic(x, 0, min=4, max=48)
            kit.close(compiled(x), layer(x))
    assert kit.served() == [config.text]


@pytest.mark.parametrize("packing", ["gptq", "gptq2", "awq"])
def test_a_table_that_says_aten(kit: Any, tmp_path: Path, packing: str) -> None:
    problem = int4(packing=packing)
    path = kit.table(tmp_path / "table.db", {problem: {}})
    gemmdb.inductor.enable(tables=[path], on_miss="error")
    solved(problem, None)
    (entry,) = gemmdb.inductor.stats()["products"]
    assert (entry["rung"], entry["config"]) == ("exact", ATEN.text)


@pytest.mark.parametrize("packing", ["gptq", "gptq2", "awq"])
def test_what_live_tuning_ends_with(kit: Any, packing: str) -> None:
    """Whatever is the fastest, a program that was rewritten for it computes what it did."""
    layer, x = Layer(packing, 1024, 1024), kit.rand(4, 1024)
    gemmdb.inductor.enable(on_miss="live")
    with torch.no_grad():
        kit.close(torch.compile(layer)(x), layer(x))
    (entry,) = gemmdb.inductor.stats()["products"]
    assert f"packing={packing}" in entry["problem"]


def test_a_weight_that_is_dequantised_apart(kit: Any) -> None:
    """Our operator without a config: the lowering dequantises the weight as ATen's GEMM takes it."""
    from gemmdb.inductor.match import ops

    gemmdb.inductor.enable(on_miss="aten")
    for packing in ("gptq", "gptq2", "awq"):
        layer, x = Layer(packing, 512, 256), kit.rand(4, 256)
        args = (x, layer.qweight, layer.scales, layer.qzeros, layer.group, packing)
        kit.close(torch.compile(ops.overload("int4_mm"))(*args), layer(x))


class Mxfp4(torch.nn.Module):
    """A linear that looks the values of E2M1 up, and scales them by powers of two."""

    def __init__(self, n: int, k: int) -> None:
        super().__init__()
        self.register_buffer("packed", torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda"))
        self.register_buffer("scales", torch.randint(120, 128, (n, k // 32), dtype=torch.uint8, device="cuda"))

    def forward(self, x: Any) -> Any:
        values = torch.tensor(E2M1, dtype=x.dtype, device=x.device)
        blocks = self.packed.reshape(-1, 16)
        weight = torch.empty(len(blocks), 32, dtype=x.dtype, device=x.device)
        weight[:, 0::2] = values[(blocks & 15).to(torch.long)]
        weight[:, 1::2] = values[(blocks >> 4).to(torch.long)]
        torch.ldexp(weight, self.scales.to(torch.int32).reshape(-1, 1) - 127, out=weight)
        return torch.nn.functional.linear(x, weight.reshape(len(self.packed), -1))


@pytest.mark.parametrize("m", [1, 40])
def test_a_program_with_mxfp4_weights(kit: Any, m: int) -> None:
    layer, x, config = Mxfp4(512, 256), kit.rand(m, 256), make("int4", block_k=64, split_k=2)
    with torch.no_grad():
        found, _ = kit.compiled(layer, x, config=config)
        kit.close(found, layer(x))
    assert kit.served() == [config.text]


def test_mxfp4_as_live_tuning_and_aten_compute_it(kit: Any) -> None:
    from gemmdb.inductor.match import ops

    layer, x = Mxfp4(1024, 1024), kit.rand(4, 1024)
    gemmdb.inductor.enable(on_miss="live")
    with torch.no_grad():
        kit.close(torch.compile(layer)(x), layer(x))
    (entry,) = gemmdb.inductor.stats()["products"]
    assert "packing=mxfp4" in entry["problem"]
    gemmdb.inductor.enable(on_miss="aten")
    args = (x, layer.packed, layer.scales, None, 32, "mxfp4")
    kit.close(torch.compile(ops.overload("int4_mm"))(*args), layer(x))


@pytest.mark.parametrize("config", [make("int4", scaled="sums"), make("int4_skinny", lean=1, block_n=64), ATEN])
def test_rows_in_any_order_of_their_groups_are_sorted(kit: Any, config: Config) -> None:
    """With freezing, once: the kernel reads the sorted weight, and ATen a 16-bit one that is a constant."""
    model, x = InOrder(1024, 2048), torch.randn(5, 2048, device="cuda").bfloat16()
    with torch.no_grad(), inductor_config.patch(freezing=True):
        wanted = model(x)
        found, code = kit.compiled(model, x, config=config)
    kit.close(found, wanted)
    assert kit.served() == [config.text]
    assert ">>" not in code or config != ATEN
