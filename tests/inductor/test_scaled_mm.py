"""Products of fp8 operands with scales in real compiles: which problem each is, what is lowered for it, what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.devices import H200  # noqa: E402
from torch._inductor import config as inductor_config  # noqa: E402
from torch._inductor import graph, utils  # noqa: E402
from torch._inductor.lowering import lowerings  # noqa: E402

import gemmdb.inductor  # noqa: E402
from gemmdb import Config, Problem  # noqa: E402
from gemmdb.inductor import force  # noqa: E402
from gemmdb.inductor.adapter import inductor_templates, templates  # noqa: E402
from gemmdb.inductor.lower import triton  # noqa: E402
from gemmdb.inductor.match import extract  # noqa: E402

VALUES = {"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "stages": 3, "warps": 4}
TEMPLATE = Config.of("triton", "inductor_mm", **VALUES)
MAPPED = Config.of("triton", "inductor_scaled_tma", **VALUES)
NOTHING: Callable[[Problem], None] = lambda problem: None  # noqa: E731
E4M3, E5M2, BF16 = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16
ROWS = pytest.mark.skipif(
    torch.__version__.startswith("2.11"), reason="ATen takes scales of rows on a CPU from torch 2.12 on"
)


def fp8(*sizes: int, dtype: Any = E4M3) -> Any:
    return torch.randn(*sizes).to(dtype)


def number() -> Any:
    return torch.rand(()) + 0.5


def scaled(a: Any, w: Any, first: Any, second: Any, **rest: Any) -> Any:
    """The product of a linear, whose weight is [N, K]."""
    return torch._scaled_mm(a, w.t(), first, second, **{"out_dtype": BF16, **rest})


class Linear(torch.nn.Module):
    """A linear layer in fp8 as torchao's dynamic quantisation has it: the scales of its rows come from the rows."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        weight = torch.randn(n, k)
        scale = weight.abs().amax(1, keepdim=True) / 448
        self.register_buffer("weight", (weight / scale).to(E4M3))
        self.register_buffer("scale", scale.t().contiguous())
        self.register_buffer("bias", torch.randn(n).to(BF16))

    def forward(self, x: Any) -> Any:
        scale = x.abs().amax(1, keepdim=True).float() / 448
        return scaled((x / scale).to(E4M3), self.weight, scale, self.scale, bias=self.bias, use_fast_accum=True)


A, W = fp8(8, 32), fp8(16, 32)
MODELS = {
    "one number": (scaled, (A, W, number(), number()), "a=fp8_e4m3:row:16 b=fp8_e4m3:col:16 out=bf16 bias=none",
                   "scales=tensor fast=0"),
    "one number of two dimensions": (scaled, (A, W, number()[None, None], number()[None]), "", "scales=tensor fast=0"),
    "fast": (lambda *x: scaled(*x, use_fast_accum=True), (A, W, number(), number()), "", "scales=tensor fast=1"),
    "a bias": (lambda a, w, s, t, c: scaled(a, w, s, t, bias=c), (A, W, number(), number(), torch.randn(16).bfloat16()),
               "bias=1d:bf16:8", "scales=tensor fast=0"),
    "two dtypes": (lambda *x: scaled(*x, out_dtype=torch.float16), (A.to(E5M2), W, number(), number()),
                   "a=fp8_e5m2:row:16 b=fp8_e4m3:col:16 out=fp16", ""),
    "an epilogue": (lambda *x: torch.relu(scaled(*x)), (A, W, number(), number()), "fusion=pointwise", ""),
    "padded rows": (lambda a, *x: scaled(a[:, :32], *x), (fp8(8, 48), W, number(), number()),
                    "a=fp8_e4m3:row-padded:16", ""),
}  # fmt: skip
BY_ROWS = {
    "rows": (scaled, (A, W, torch.rand(8, 1), torch.rand(1, 16)), "out=bf16 bias=none", "scales=row fast=0"),
    "one row": (scaled, (fp8(1, 32), W, torch.rand(1, 1), torch.rand(1, 16)), "", "scales=row fast=0"),
    "scales of a transposed weight": (lambda a, w, s, t: scaled(a, w, s, t.t()),
                                      (A, W, torch.rand(8, 1), torch.rand(16, 1)), "", "scales=row fast=0"),
}  # fmt: skip
EVERY = [*MODELS, *(pytest.param(name, marks=ROWS) for name in BY_ROWS)]


@pytest.mark.parametrize("name", EVERY)
def test_a_product_is_a_problem_and_a_miss_is_atens(kit, name):
    model, inputs, described, end = {**MODELS, **BY_ROWS}[name]
    with torch.no_grad(), force(NOTHING):
        kit.close(kit.compiled(model, *inputs), model(*inputs))
    stats = gemmdb.inductor.stats()
    (text,) = kit.problems(stats)
    assert text.startswith(f"scaled_mm m={len(inputs[0])} n=16 k=32 ")
    assert f" {described}" in text
    assert text.endswith(end)
    assert (stats["hits"], stats["misses"], stats["uncovered"], stats["errors"]) == (0, 1, {}, [])


@ROWS
@pytest.mark.skipif(torch.ops.aten._scaled_mm_v2.default not in lowerings, reason="this torch leaves it to ATen")
def test_the_second_version_says_the_same(kit):
    from torch.nn.functional import ScalingType, scaled_mm

    rows = (A, W, torch.rand(8, 1), torch.rand(1, 16))
    one = (A, W, number(), number())
    for kind, inputs in (("RowWise", rows), ("TensorWise", one)):
        way = getattr(ScalingType, kind)
        gemmdb.inductor.reset_stats()

        def model(a, w, s, t, way=way):
            return scaled_mm(a, w.t(), s, way, t, way, use_fast_accum=True)

        with torch.no_grad(), force(NOTHING):
            kit.close(kit.compiled(model, *inputs), model(*inputs))
            (text,) = kit.problems()
            gemmdb.inductor.reset_stats()
            kit.compiled(lambda *x: scaled(*x, use_fast_accum=True), *inputs)
            assert kit.problems() == [text]


@ROWS
def test_a_table_answers_for_a_model_with_aten(kit, table):
    model, x = Linear(32, 16), torch.randn(5, 32).to(BF16)
    problem = Problem.gemm("scaled_mm", m=5, n=16, k=32, scales="row", fast_accum=True, bias="1d")
    path = table({problem.text: kit.ATEN})
    gemmdb.inductor.enable(tables=[path], on_miss="error")
    with torch.no_grad():
        kit.close(kit.compiled(model, x), model(x))
        (entry,) = gemmdb.inductor.stats()["products"]
        assert (entry["problem"], entry["rung"], entry["config"]) == (problem.text, "exact", kit.ATEN.text)
        assert entry["table"] == str(path)
        with pytest.raises(Exception, match="MissError: no table answers for scaled_mm m=6 n=16 k=32"):
            kit.compiled(model, torch.randn(6, 32).to(BF16))
        gemmdb.inductor.enable(tables=[path], on_miss="aten")
        gemmdb.inductor.reset_stats()
        kit.compiled(model, torch.randn(6, 32).to(BF16))
        kit.compiled(model, torch.randn(600, 32).to(BF16))
        assert gemmdb.inductor.stats()["rungs"] == {"near": 1, "aten": 1}


@ROWS
@pytest.mark.slow
def test_what_is_recorded_is_built_and_served(kit, tmp_path, monkeypatch):
    """The whole way on a CPU: a workload, a table of it, and a compile that takes its answer from there."""
    from gemmdb.generators.build.build import BuildRequest, build

    model, x = Linear(64, 32), torch.randn(8, 64).to(BF16)
    with gemmdb.inductor.record(tmp_path / "workload.jsonl"), torch.no_grad():
        kit.compiled(model, x)
    monkeypatch.setenv("GEMMDB_USER_TABLE", str(tmp_path / "none.db"))
    report = build(BuildRequest(arch="cpu", shapes=str(tmp_path / "workload.jsonl"), out=tmp_path / "cpu.db"))
    assert (report.measured, report.left) == (1, 0)
    gemmdb.inductor.reset_stats()
    gemmdb.inductor.enable(tables=[tmp_path / "cpu.db"], on_miss="error")
    with torch.no_grad():
        kit.close(kit.compiled(model, x), model(x))
    (entry,) = gemmdb.inductor.stats()["products"]
    assert (entry["rung"], entry["config"]) == ("exact", kit.ATEN.text)
    assert entry["problem"].endswith("scales=row fast=1")


def test_an_answer_benchmarks_nothing_under_max_autotune(kit):
    inputs = (fp8(32, 64), fp8(64, 64), number(), number())
    with torch.no_grad(), force(kit.ATEN), inductor_config.patch(max_autotune=True):
        kit.close(kit.compiled(scaled, *inputs), scaled(*inputs))
    stats = gemmdb.inductor.stats()
    assert (stats["benchmarked"], stats["hits"]) == (0, 1)


def test_a_frozen_weight_is_a_constant(kit):
    weight = torch.nn.Parameter(W, requires_grad=False)

    class Frozen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, a, s, t):
            return scaled(a, self.weight, s, t)

    inputs = (A, number(), number())
    with torch.no_grad(), force(NOTHING), inductor_config.patch(freezing=True):
        kit.close(kit.compiled(Frozen().eval(), *inputs), Frozen()(*inputs))
    (text,) = kit.problems()
    assert " constant=1 " in text


def test_kernels_of_other_ops_leave_aten_and_a_note(kit):
    padded = Config.of("aten", "padded", multiple=16)
    for config in (kit.CPP, kit.INT8PACK, padded):
        gemmdb.inductor.reset_stats()
        inputs = (A, W, number(), number())
        with torch.no_grad(), force(config):
            kit.close(kit.compiled(scaled, *inputs), scaled(*inputs))
        stats = gemmdb.inductor.stats()
        (entry,) = stats["products"]
        assert (entry["config"], stats["errors"]) == (kit.ATEN.text, [])
        assert entry["note"]


OTHERS = {
    "an fp8 output": (lambda a, w, s: scaled(a, w, s, s, out_dtype=None).float(), "the output is one of"),
    "a scaled output": (lambda a, w, s: scaled(a, w, s, s, scale_result=s), "the output is scaled"),
    "fnuz": (lambda a, w, s: scaled(a.float().to(torch.float8_e4m3fnuz), w, s, s), "dtype torch.float8_e4m3fnuz"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_problem_is_counted_as_uncovered(kit, name):
    model, reason = OTHERS[name]
    inputs = (A, W, number())
    with torch.no_grad(), force(TEMPLATE):
        kit.close(kit.compiled(model, *inputs), model(*inputs))
    stats = gemmdb.inductor.stats()
    assert stats["products"] == []
    (found,) = stats["uncovered"]
    assert found.startswith("aten._scaled_mm.default: ")
    assert reason in found
    assert stats["errors"] == []


@ROWS
def test_a_symbolic_number_of_rows_has_a_range(kit):
    a, s = fp8(8, 32), torch.rand(8, 1)
    torch._dynamo.mark_dynamic(a, 0)
    torch._dynamo.mark_dynamic(s, 0)
    inputs = (a, W, s, torch.rand(1, 16))
    with torch.no_grad(), force(NOTHING):
        kit.close(kit.compiled(scaled, *inputs), scaled(*inputs))
    (entry,) = gemmdb.inductor.stats()["products"]
    assert entry["ranges"] == {"m": [2, None]}


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Inductor's templates would be generated from on an H200; what is served instead is ATen."""
    found: list[Any] = []

    def stop(choice: Any, operands: Any, out: Any, rest: Any) -> object:
        found.append((choice, out, [[int(size) for size in one.get_size()] for one in (*operands, *rest)]))
        raise triton.Refused("that far")

    # Inductor has to think of inputs on a CPU as it does of those on a GPU, of which it says where they begin.
    monkeypatch.setattr(graph, "should_assume_input_aligned", utils.tensor_is_aligned)
    monkeypatch.setattr(extract, "device", lambda of: H200)
    monkeypatch.setattr(inductor_templates, "scaled_product", stop)
    monkeypatch.setattr(inductor_templates, "get_num_sms", lambda: 132)
    monkeypatch.setattr(templates, "unmapped", lambda: "")
    return found


@pytest.mark.parametrize("config", [TEMPLATE, MAPPED], ids=lambda config: config.kernel)
@pytest.mark.parametrize("name", EVERY)
def test_a_gpu_is_handed_the_one_choice(kit, generated, config, name):
    model, inputs, _, _ = {**MODELS, **BY_ROWS}[name]
    with torch.no_grad(), force(config):
        kit.close(kit.compiled(model, *inputs), model(*inputs))
    stats = gemmdb.inductor.stats()
    (entry,) = stats["products"]
    assert (stats["errors"], stats["benchmarked"]) == ([], 0)
    if config == MAPPED and name in ("a bias", "one row"):
        assert "takes no bias" in entry["note"] or "a size of 1" in entry["note"]
        return
    assert entry["note"] == "that far"
    ((choice, out, sizes),) = generated
    m = len(inputs[0])
    assert (choice.kernel, choice.warps, choice.stages) == (config.kernel, 4, 3)
    assert choice.constants["EVEN_K"] is False
    assert out == (torch.float16 if name == "two dtypes" else BF16)
    assert sizes[:2] == [[m, 32], [32, 16]]
    if config == TEMPLATE:
        # All of the epilogue is seen as the output is.
        assert sizes[2:] == [[m, 16]] * (3 if name == "a bias" else 2)
    else:
        assert sizes[2:] == [list(one.t().shape if name == "scales of a transposed weight" and i else one.shape)
                             for i, one in enumerate(inputs[2:4])]  # fmt: skip


def test_a_symbolic_size_is_not_for_a_template(kit, generated):
    a = fp8(8, 32)
    torch._dynamo.mark_dynamic(a, 0)
    inputs = (a, W, number(), number())
    with torch.no_grad(), force(TEMPLATE):
        kit.close(kit.compiled(scaled, *inputs), scaled(*inputs))
    (entry,) = gemmdb.inductor.stats()["products"]
    assert "fixed sizes" in entry["note"]
    assert generated == []


@ROWS
def test_a_constant_scale_that_begins_anywhere_is_refused(kit, generated):
    """Inductor takes it for granted that it begins at a multiple of 16 bytes, and tells Triton so."""

    class Frozen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.rand(20)[1:17].view(1, 16), requires_grad=False)

        def forward(self, a, w, first):
            return scaled(a, w, first, self.scale)

    model, inputs = Frozen().eval(), (A, W, torch.rand(8, 1))
    with torch.no_grad(), force(TEMPLATE), inductor_config.patch(freezing=True):
        kit.close(kit.compiled(model, *inputs), model(*inputs))
    (entry,) = gemmdb.inductor.stats()["products"]
    assert entry["note"] == "a constant is not aligned to 16 bytes"
    assert generated == []
