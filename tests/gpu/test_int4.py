"""Products with int4 weights on a GPU: our kernel in all its forms, ATen's operator, and what programs compile to."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import make, measure_forms, served_as_one_choice, solved
from torch.nn.functional import linear, silu

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.kernels.config import ATEN
from gemmdb.table.measurement import Status

pytestmark = [
    pytest.mark.usefixtures("clean"),
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0),
        reason="needs an NVIDIA GPU of compute capability 8.0: _weight_int4pack_mm",
    ),
]
DEQUANTISED = Config.of("aten", "dequantised")


def int4(**rest: Any) -> Problem:
    return Problem.gemm("mixed_mm", **{"m": 5, "n": 136, "k": 512, "weight_dtype": "int4", **rest})


TILED = [
    *(int4(group=group, packing=packing) for group in (32, 64, 128, 256)
      for packing in ("tinygemm8", "tinygemm4", "tinygemm2")),
    int4(m=1, n=1032, k=4224, packing="tinygemm2"), int4(m=40, fusion="pointwise"), int4(bias="1d", group=64),
    int4(m=13, group=32), int4(m=16, k=640),
]  # fmt: skip
BYTES = [
    *(int4(group=group, packing=packing, zeros=zeros, k=576 if group <= 64 else 512)
      for group in (32, 64, 128) for packing in ("low-first", "high-first") for zeros in ("none", "uint8", "bf16")),
    int4(packing="low-first", zeros="int8"), int4(packing="low-first", zeros="fp16", dtype="fp16", n=137),
    int4(packing="high-first", dtype="fp16", bias="1d", m=1), int4(packing="low-first", fusion="pointwise", m=70),
    int4(packing="low-first", zeros="uint8", group=32, m=13), int4(packing="high-first", zeros="none", m=16, k=640),
]  # fmt: skip
FORMS = [
    make("int4"), make("int4", split_k=2), make("int4", block_n=128, block_k=256, warps=8),
    make("int4", block_m=8, warps=2), make("int4", block_m=32, block_n=32, warps=1, split_k=3),
    make("int4", scaled="sums"), make("int4", scaled="sums", block_n=256, block_m=8, split_k=2),
    make("int4", scaled="sums", block_n=128, warps=2), make("int4", scaled="sums", block_k=64, warps=2),
    make("int4", block_m=64, block_n=128, block_k=64), make("int4", scaled="sums", block_k=32, block_n=128),
    make("int4", order="memory"), make("int4", order="memory", block_m=8, warps=2, split_k=3),
    make("int4", order="memory", block_m=64, block_n=128, block_k=64, warps=8, stages=5),
    make("int4", order="memory", block_k=256, split_k=2), make("int4", order="memory", scaled="sums"),
    make("int4", order="memory", block_m=64, block_n=128, stages=4), make("int4", block_m=64, block_n=128, warps=8),
    make("int4_skinny"), make("int4_skinny", block_n=64, stages=2), make("int4_skinny", warps=8, next="before"),
    make("int4_skinny", activations="shared", warps=2, next="before"),
    make("int4_skinny", block_n=32, stages=3, activations="shared"), make("int4_skinny", adjacent=1, stages=2),
    make("int4_skinny", adjacent=1, stages=4, warps=1, next="before"),
    make("int4_skinny", lean=1), make("int4_skinny", lean=1, activations="ahead", warps=2, stages=2),
    make("int4_skinny", lean=1, activations="ahead", adjacent=1, warps=1, stages=2, next="before"),
    make("int4_skinny", lean=1, activations="shared", block_n=32, warps=2),
]  # fmt: skip
SERVED = [
    *((config, problem) for config in (FORMS[1], FORMS[5]) for problem in (TILED[6], TILED[13], BYTES[14], BYTES[21])),
    (FORMS[3], TILED[14]), (FORMS[4], BYTES[20]), (DEQUANTISED, TILED[0]), (DEQUANTISED, TILED[13]),
    *((config, problem) for config in FORMS[-4:] for problem in (TILED[6], BYTES[7], TILED[-1], BYTES[-2])),
    (ATEN, TILED[6]), (ATEN, BYTES[0]),
]  # fmt: skip


@pytest.mark.parametrize("problem", [*TILED, *BYTES], ids=lambda problem: problem.text)
def test_every_form_of_the_kernel_is_right(problem: Problem) -> None:
    measure_forms(problem, FORMS, least=3)


@pytest.mark.parametrize(("config", "problem"), SERVED, ids=lambda value: getattr(value, "text", value))
def test_a_config_is_served_as_one_choice(config: Config, problem: Problem) -> None:
    code = served_as_one_choice(config, problem)
    assert ("_weight_int4pack_mm.default(" in code) == (config == ATEN and problem.int4.inner > 0)


def test_the_layout_is_torchs(kit: Any) -> None:
    """A weight that torch packs, in the layouts for all numbers of inner tiles."""
    numbers = torch.randint(0, 16, (64, 256), device="cuda", dtype=torch.int32)
    in_bytes = (numbers[:, ::2] << 4 | numbers[:, 1::2]).to(torch.uint8)
    from gemmdb.inductor.match.ops import numbers as read

    for inner in (2, 4, 8):
        packed = torch.ops.aten._convert_weight_to_int4pack(in_bytes, inner)
        own = int4(packing=f"tinygemm{inner}").int4
        assert torch.equal(read(packed, own), numbers.to(torch.uint8))


class Layer(torch.nn.Module):
    """A linear as gpt-fast and torchao have it: the weight in tinygemm's layout, scales and zero points beside it."""

    def __init__(self, n: int, k: int, group: int) -> None:
        super().__init__()
        in_bytes = torch.randint(0, 256, (n, k // 2), device="cuda", dtype=torch.uint8)
        self.register_buffer("weight", torch.ops.aten._convert_weight_to_int4pack(in_bytes, 8))
        self.register_buffer("scales", torch.rand(k // group, n, 2, device="cuda").bfloat16() / 16)
        self.group = group

    def forward(self, x: Any) -> Any:
        shape = x.size()
        y = torch.ops.aten._weight_int4pack_mm(x.reshape(-1, shape[-1]), self.weight, self.group, self.scales)
        return y.reshape(*shape[:-1], -1)


@pytest.mark.parametrize("config", [make("int4"), make("int4", scaled="sums", split_k=2), DEQUANTISED],
                         ids=lambda config: config.text)  # fmt: skip
def test_a_gated_layer_of_gpt_fast(kit: Any, config: Config) -> None:
    gate, up, down = Layer(512, 256, 128), Layer(512, 256, 128), Layer(256, 512, 128)
    x = kit.rand(2, 3, 256)

    def model(x: Any) -> Any:
        return down(silu(gate(x)) * up(x))

    with torch.no_grad():
        found, code = kit.compiled(model, x, config=config)
        kit.close(found, model(x))
    assert kit.served() == [config.text] * 3
    assert "_weight_int4pack_mm.default(" not in code


def test_one_kernel_serves_any_number_of_rows(kit: Any) -> None:
    layer, config = Layer(512, 256, 128), make("int4", scaled="sums", split_k=2)
    compiled = torch.compile(layer)
    with gemmdb.inductor.force(config), torch.no_grad():
        for m in (24, 9, 40):
            x = kit.rand(m, 256)
            torch._dynamo.mark_dynamic(x, 0, min=4, max=48)
            kit.close(compiled(x), layer(x))
    assert kit.served() == [config.text]


@pytest.mark.parametrize("start", [1, 8, 16])
def test_a_weight_that_begins_anywhere(kit: Any, start: int) -> None:
    """Our kernel reads words; where a weight of bytes begins between them, the GEMM is ATen's."""
    memory = torch.randint(0, 256, (start + 136 * 256,), device="cuda", dtype=torch.uint8)
    scale, x = kit.rand(136, 4).abs() / 16, kit.rand(5, 512)

    def model(x: Any, memory: Any, scale: Any) -> Any:
        w = memory[start:].view(136, 256)
        numbers = torch.stack([w & 15, w >> 4], -1).view(136, 4, 128).to(x.dtype)
        return linear(x, ((numbers - 8) * scale.unsqueeze(-1)).view(136, 512))

    with torch.no_grad():
        found, _ = kit.compiled(model, x, memory, scale, config=make("int4"))
    kit.close(found, model(x, memory, scale))
    assert kit.served() == [(make("int4") if start % 16 == 0 else ATEN).text]


def test_a_table_serves_our_kernel_and_aten(kit: Any, tmp_path: Path) -> None:
    ours, atens = int4(group=64), int4(group=128)
    path = kit.table(tmp_path / "table.db", {ours: {make("int4"): 50.0}, atens: {}})
    for problem, config in ((ours, make("int4")), (atens, ATEN)):
        torch._dynamo.reset()
        gemmdb.inductor.reset_stats()
        gemmdb.inductor.enable(tables=[path], on_miss="error")
        solved(problem, None)
        (entry,) = gemmdb.inductor.stats()["products"]
        assert (entry["rung"], entry["config"]) == ("exact", config.text)


def test_a_build_measures_all_that_there_is(tmp_path: Path) -> None:
    from gemmdb.devices.detect import cuda
    from gemmdb.generators.build.build import BuildRequest, build
    from gemmdb.table.reader import Table

    shapes = tmp_path / "shapes.json"
    shapes.write_text(
        '[{"op": "mixed_mm", "m": [4, 256], "n": 1024, "k": 1024, "weight_dtype": "int4"},'
        ' {"op": "mixed_mm", "m": 4, "n": 1024, "k": 1024, "weight_dtype": "int4", "packing": "low-first"},'
        ' {"op": "mixed_mm", "m": 4, "n": 1024, "k": 1056, "weight_dtype": "int4"}]'
    )
    out = tmp_path / "table.db"
    build(BuildRequest(arch="native", shapes=str(shapes), out=out))
    device = cuda()
    assert device is not None
    sizes = {"n": 1024, "k": 1024}
    with Table.open(out) as table:
        for problem, kernels in (
            (int4(m=4, **sizes), {"default", "dequantised", "int4", "int4_skinny"}),
            (int4(m=256, **sizes), {"default", "dequantised", "int4"}),
            (int4(m=4, packing="low-first", **sizes), {"default", "int4", "int4_skinny"}),
        ):
            rows, verdict = table.rows(problem, device), table.verdict(problem, device)
            assert {row.config.kernel for row in rows if row.times} == kernels
            assert {row.status for row in rows} <= {Status.OK, Status.SLOW, Status.ERROR}
            assert verdict is not None
            assert 0 < verdict.ratio <= 1
        (refused,) = table.rows(int4(m=4, n=1024, k=1056), device)
    assert (refused.status, refused.config) == (Status.ILLEGAL, ATEN)
