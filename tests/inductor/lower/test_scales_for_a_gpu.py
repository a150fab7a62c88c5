"""What a GPU would be handed of GEMMs with scales: whose work the scales are."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.for_a_gpu import CUTLASS, NARROW, PERSISTENT, TILE, asked, ints, linear
from kit.program_batch import ProgramBatch
from torch._inductor.lowering import lowerings

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.inductor.lower import triton
from gemmdb.inductor.lower.adapter import cutlass, inductor_templates, templates

EARLY = {
    "per channel": lambda x, w, s: linear(x, w.to(x.dtype) * s[:, None]),
    "per tensor": lambda x, w, s: linear(x, w.to(x.dtype) * s[:1]),
    "transposed": lambda x, w, s: x @ (s * w.t().to(x.dtype)),
    "of a batch": lambda x, w, s: linear(x.view(2, 24, -1)[:, 1:], w.to(x.dtype) * s[:, None]),
}


KERNELS = (NARROW, TILE, PERSISTENT, CUTLASS)


@pytest.mark.parametrize("config", KERNELS, ids=lambda config: config.name)
def test_an_early_scale_in_fp16(config: Config, reached: list[str]) -> None:
    """Kernels scale their fp32 accumulator. What is not to be one scales the weight, as the program does: the GEMM of
    the bare integers would overflow."""
    cases = [("per channel", torch.int8), ("per channel", torch.uint8)]
    if config in (TILE, CUTLASS):  # A kernel of each backend with every spelling.
        cases += [(name, torch.int8) for name in EARLY if name != "per channel"]
    x, s = torch.full((48, 512), 16.0).half(), (torch.rand(1024) / 64).half()
    inputs = [(x.clone(), torch.randint(90, 120, (1024, 512), dtype=weight), s.clone()) for _, weight in cases]
    programs, asked_about = ProgramBatch([EARLY[name] for name, _ in cases]), set()

    def chosen(problem: Problem) -> Config:
        asked_about.add(problem)
        return config

    with torch.no_grad(), gemmdb.inductor.force(chosen):
        found = torch.compile(programs, dynamic=False)(*inputs)
    assert {entry["note"] for entry in gemmdb.inductor.stats()["products"]} == {"that far"}
    assert len(reached) == len(cases)
    assert asked_about == {
        Problem.gemm(
            "mixed_mm", m=46 if name == "of a batch" else 48, n=1024, k=512, dtype="fp16",
            weight_dtype="uint8" if weight is torch.uint8 else "int8", fusion="scale",
        )
        for name, weight in cases
    }  # fmt: skip
    torch._dynamo.reset()
    for one, plain in zip(found, torch.compile(programs, dynamic=False)(*inputs), strict=True):
        assert torch.equal(one, plain)
        assert one.isfinite().all()


@pytest.mark.parametrize("config", [TILE, CUTLASS], ids=lambda config: config.name)
def test_an_early_scale_of_any_number_of_rows(config: Config, reached: list[str]) -> None:
    x, w, s = torch.full((48, 512), 16.0).half(), ints(1024, 512).fill_(100), (torch.rand(1024) / 64).half()
    torch._dynamo.mark_dynamic(x, 0)
    product = asked(EARLY["per channel"], x, w, s, config=config)
    assert (product["note"], product["ranges"]) == ("that far", {"m": [2, None]})
    assert len(reached) == 1


def torchao(a: Any, b: Any, rows: Any, columns: Any) -> Any:
    """A linear of int8 activations, as torchao writes it for a GPU."""
    product = torch._int_mm(a.reshape(-1, a.shape[-1]), b.t())
    product = (product * rows.reshape(-1, 1).expand(product.shape)).bfloat16()
    return (product * columns.flatten()).reshape(*a.shape[:-1], -1).bfloat16()


def biased(a: Any, b: Any, rows: Any, columns: Any) -> Any:
    """What is stored is of the dtype after the bias."""
    product = torch._int_mm(a.reshape(-1, a.shape[-1]), b.t())
    product = (product * rows.reshape(-1, 1).expand(product.shape)).bfloat16()
    product = (product * columns.flatten()).reshape(*a.shape[:-1], -1)
    return (product + columns.flatten().bfloat16()).bfloat16()


def normed(a: Any, b: Any, rows: Any, columns: Any) -> Any:
    return torch.nn.functional.rms_norm(torchao(a, b, rows, columns), (b.shape[0],))


def with_zero_points(a: Any, b: Any, rows: Any, columns: Any) -> Any:
    """As torchao writes it with asymmetric activations."""
    product = torch._int_mm(a.reshape(-1, a.shape[-1]), b.t())
    product = (product * rows.reshape(-1, 1).expand(product.shape)).bfloat16()
    correction = (3 * rows.reshape(-1, 1)) * b.sum(dim=-1).to(rows.dtype)
    return (product - correction.bfloat16()) * columns.flatten()


def of_integers(m: int = 32, n: int = 1024, k: int = 512) -> tuple[Any, ...]:
    return ints(2, m // 2, k), ints(n, k), torch.rand(2, m // 2, 1).bfloat16(), torch.rand(n, 1)


INDUCTOR = Config.of("triton", "inductor_mm", block_m=64, block_n=128, block_k=64, group_m=8, warps=4, stages=3)
SPLIT = Config.of("triton", "tile", **{**TILE.values, "split_k": 2, "reduce": "kernel"})
SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16"}
SCALED = [
    *((model, config, False) for model in (torchao, biased, normed, with_zero_points) for config in (TILE, CUTLASS)),
    *((torchao, config, False) for config in (PERSISTENT, INDUCTOR, NARROW)),
    *((torchao, config, True) for config in (TILE, CUTLASS)),
]


@pytest.mark.parametrize(
    ("model", "config", "dynamic"), SCALED, ids=[f"{model.__name__}-{c.name}-{many}" for model, c, many in SCALED]
)
def test_the_scales_of_an_integer_gemm_are_the_kernels(
    model: Any, config: Config, dynamic: bool, reached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever follows: the kernel itself stores two bytes per element. A norm computes in fp32, and Inductor before
    torch 2.13 drops a cast to bf16 that a cast to fp32 follows."""
    stored, scales = [], []
    macros = {"row_scale": "ROW_SCALE 1", "scale": "SCALE 1", "bias": "BIAS 1"}

    def stop(kernel: Any, *rest: Any, **options: Any) -> Any:
        if config is CUTLASS:
            call, kernel = kernel, kernel.kernel
            stored.append(call.dtype)
            scales.append([name for name in macros if name in call.operands])
            assert all((f"GEMMDB_{macros[name]}\n" in kernel.source) == (name in scales[0]) for name in macros)
        else:
            out, epilogue = (rest[1], options["epilogue"]) if config is INDUCTOR else (rest[1][0], rest[2])
            stored.append(out)
            scales.append(["row_scale" if node.get_size()[-1] == 1 else "scale" for node in epilogue.scales])
            scales[0] += [] if epilogue.bias is None else ["bias"]
            assert epilogue.integer
        raise triton.Refused("that far")

    for module in (templates, inductor_templates, cutlass):
        monkeypatch.setattr(module, "gemm", stop)
    inputs = of_integers()
    if dynamic:
        for tensor in (inputs[0], inputs[2]):
            torch._dynamo.mark_dynamic(tensor, 1, min=2, max=64)
    product = asked(model, *inputs, config=config)
    assert product["problem"].startswith("int_mm m=32 n=1024 k=512 ")
    out = torch.float32 if model is normed and torch.__version__ < "2.13" else torch.bfloat16
    assert f" out={SHORT[out]} bias=none scalars=unit fusion=scale " in product["problem"]
    assert product["note"] == "that far"
    assert stored == [out]
    both = ["row_scale", "scale"]
    assert scales == [{with_zero_points: ["row_scale"], biased: [*both, "bias"]}.get(model, both)]


def test_partial_sums_of_integers_are_scaled_as_floats(reached: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows the kernel sums its slices of K, and is generated here for the CPU."""

    def slices(kernel: Any, operands: Any, out: Any, epilogue: Any = None) -> Any:
        whole = lowerings[torch.ops.aten._int_mm.default](*operands)
        return lowerings[torch.ops.aten.expand.default](whole, [2, *whole.get_size()])

    monkeypatch.setattr(templates, "gemm", slices)
    inputs = of_integers()
    with torch.no_grad(), gemmdb.inductor.force(SPLIT):
        found = torch.compile(torchao)(*inputs)
    wanted = 2 * torchao(*inputs).double()
    assert (found.double() - wanted).abs().max() <= 0.02 * wanted.abs().max()
    (product,) = gemmdb.inductor.stats()["products"]
    assert (product["config"], product["note"]) == (SPLIT.text, "")
