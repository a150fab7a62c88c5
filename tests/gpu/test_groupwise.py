"""GEMMs with weights of bytes whose groups have scales, on a GPU: our kernel in its forms, and programs of
compressed-tensors and torchao."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import make, measure_forms, served_as_one_choice, solved

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.kernels.config import ATEN

pytestmark = [
    pytest.mark.usefixtures("clean"),
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0),
        reason="needs an NVIDIA GPU of compute capability 8.0",
    ),
]


def eight(**rest: Any) -> Problem:
    return Problem.gemm("mixed_mm", **{"m": 5, "n": 264, "k": 512, "weight_dtype": "int8", "group": 128, **rest})


KINDS: list[dict[str, str]] = [
    {"weight_dtype": "int8"}, {"weight_dtype": "uint8"}, {"weight_dtype": "int8", "zeros": "int8"},
    {"weight_dtype": "uint8", "zeros": "uint8"}, {"weight_dtype": "uint8", "zeros": "uint8x4"},
    {"weight_dtype": "int8", "zeros": "int8", "packing": "byte-fp32"},
]  # fmt: skip
PROBLEMS = [
    *(eight(**kind, group=group, dtype=dtype) for kind in KINDS for group in (32, 128) for dtype in ("bf16", "fp16")),
    *(eight(**kind, m=m, n=n, k=k) for kind in (KINDS[0], KINDS[4])
      for m, n, k in ((1, 1032, 4224), (16, 4096, 640), (40, 520, 1152), (200, 512, 512))),
    eight(fusion="pointwise", m=33), eight(bias="1d", m=9), eight(zeros="bf16", group=64), eight(group=256),
]  # fmt: skip
FORMS = [
    make("groupwise"), make("groupwise", split_k=2), make("groupwise", block_n=128, block_k=64, dequant="bits"),
    make("groupwise", block_m=8, block_n=32, warps=2), make("groupwise", block_m=64, block_n=128, stages=2),
    make("groupwise", block_k=256, dequant="bits"), make("groupwise", block_k=32, warps=2, split_k=2),
    make("groupwise", block_n=128, block_k=64, warps=8, stages=5), make("groupwise", block_n=32, warps=1, block_k=64),
]  # fmt: skip
SERVED = [
    (config, problem) for problem in (PROBLEMS[0], PROBLEMS[-4], PROBLEMS[-3], PROBLEMS[17], PROBLEMS[21])
    for config in (FORMS[0], FORMS[1], FORMS[5], ATEN)
]  # fmt: skip


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.text)
def test_every_form_of_the_kernel_is_right(problem: Problem) -> None:
    measure_forms(problem, FORMS)


@pytest.mark.parametrize(("config", "problem"), SERVED, ids=lambda value: getattr(value, "text", value))
def test_a_config_is_served_as_one_choice(config: Config, problem: Problem) -> None:
    served_as_one_choice(config, problem)


class Layer(torch.nn.Module):
    """A linear with the dequantisation of compressed-tensors or, with fp32 scales, of torchao in torch."""

    def __init__(self, kind: str, n: int, k: int, group: int = 128) -> None:
        super().__init__()
        self.kind, self.k, self.groups = kind, k, k // group
        self.scales = torch.float32 if kind == "fp32 scales" else torch.bfloat16
        words = kind in ("words", "zero points")
        sizes, dtype = ((n, k // 4), torch.int32) if words else ((n, k), torch.int8)
        limits = torch.iinfo(dtype)
        self.register_buffer("w", torch.randint(limits.min, limits.max, sizes, dtype=dtype, device="cuda"))
        self.register_buffer("s", torch.rand(n, k // group, device="cuda").to(self.scales) / 64)
        limits = torch.iinfo(torch.int32)
        zeros = torch.randint(limits.min, limits.max, (n // 4, k // group), dtype=torch.int32, device="cuda")
        self.register_buffer("z", zeros if kind == "zero points" else None)

    def forward(self, x: Any) -> Any:
        numbers = self.unpacked(self.w, self.k, 1) if self.w.dtype is torch.int32 else self.w
        found = numbers.unflatten(-1, (self.groups, -1)).to(self.s.dtype)
        if self.z is not None:
            found = found - self.unpacked(self.z, len(self.s), 0).unsqueeze(-1).to(self.s.dtype)
        return torch.nn.functional.linear(x, (found * self.s.unsqueeze(-1)).flatten(start_dim=-2).to(x.dtype))

    def unpacked(self, words: Any, size: int, dim: int) -> Any:
        sizes = (words.shape[0], size) if dim else (size, words.shape[1])
        whole = torch.zeros(sizes, device=words.device, dtype=torch.int32)
        for place in range(4):
            found = (words >> 8 * place) & 255
            if dim:
                whole[:, place::4] = found
            else:
                whole[place::4, :] = found
        return (whole - 128).to(torch.int8)


@pytest.mark.parametrize("kind", ["plain", "words", "zero points", "fp32 scales"])
def test_a_gated_layer(kit: Any, kind: str) -> None:
    config = make("groupwise", split_k=2)
    gate, up, down = Layer(kind, 512, 256), Layer(kind, 512, 256), Layer(kind, 256, 512)
    x = kit.rand(2, 3, 256)

    def model(x: Any) -> Any:
        return down(torch.nn.functional.silu(gate(x)) * up(x))

    with torch.no_grad():
        found, _ = kit.compiled(model, x, config=config)
        kit.close(found, model(x))
    assert kit.served() == [config.text] * 3


@pytest.mark.parametrize("kind", ["plain", "zero points"])
def test_one_kernel_serves_any_number_of_rows(kit: Any, kind: str) -> None:
    layer, config = Layer(kind, 512, 256), make("groupwise")
    compiled = torch.compile(layer)
    with gemmdb.inductor.force(config), torch.no_grad():
        for m in (24, 9, 40):
            x = kit.rand(m, 256)
            torch._dynamo.mark_dynamic(x, 0, min=4, max=48)
            kit.close(compiled(x), layer(x))
    assert kit.served() == [config.text]


@pytest.mark.parametrize("place", [0, 4], ids=["plain", "zero points"])
def test_a_table_that_says_aten(kit: Any, tmp_path: Path, place: int) -> None:
    problem = eight(**KINDS[place])
    path = kit.table(tmp_path / "table.db", {problem: {}})
    gemmdb.inductor.enable(tables=[path], on_miss="error")
    solved(problem, None)
    (entry,) = gemmdb.inductor.stats()["products"]
    assert (entry["rung"], entry["config"]) == ("exact", ATEN.text)


@pytest.mark.parametrize("kind", ["plain", "words", "zero points", "fp32 scales"])
def test_what_live_tuning_ends_with(kit: Any, kind: str) -> None:
    """Whatever is the fastest, a program that was rewritten for it computes what it did."""
    layer, x = Layer(kind, 1024, 1024), kit.rand(4, 1024)
    gemmdb.inductor.enable(on_miss="live")
    with torch.no_grad():
        kit.close(torch.compile(layer)(x), layer(x))
    (entry,) = gemmdb.inductor.stats()["products"]
    assert "packing=byte" in entry["problem"]


def test_a_weight_that_is_dequantised_apart(kit: Any) -> None:
    """Our operator without a config: the lowering dequantises the weight as ATen's GEMM takes it."""
    from gemmdb.inductor.match import ops

    gemmdb.inductor.enable(on_miss="aten")
    for kind in ("plain", "words", "zero points", "fp32 scales"):
        layer, x = Layer(kind, 512, 256), kit.rand(4, 256)
        args = (x, layer.w, layer.s, layer.z, 128, "byte-fp32" if kind == "fp32 scales" else "byte")
        kit.close(torch.compile(ops.overload("int4_mm"))(*args), layer(x))
