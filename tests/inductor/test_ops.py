"""What holds for products of batches and of fp8 operands alike in real compiles: which problem each is, which answer it
gets, and what is no problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.products import EVERY, PRODUCTS, ROWS, A, W, fp8, number, rand, scaled
from torch._inductor import config as inductor_config

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.inductor import force

VALUES = {"block_m": 64, "block_n": 64, "block_k": 32, "group_m": 8, "stages": 3, "warps": 4}
TEMPLATES = {
    "bmm": Config.of("triton", "inductor_bmm", **VALUES),
    "scaled_mm": Config.of("triton", "inductor_mm", **{**VALUES, "block_k": 64}),
}
NOTHING: Callable[[Problem], None] = lambda problem: None  # noqa: E731


@pytest.mark.parametrize("name", EVERY)
def test_a_product_is_a_problem_and_a_miss_is_atens(kit, name):
    product = PRODUCTS[name]
    with torch.no_grad(), force(NOTHING):
        kit.close(kit.compiled(product.model, *product.inputs), product.model(*product.inputs))
    stats = gemmdb.inductor.stats()
    (text,) = kit.problems(stats)
    assert text.startswith(product.head)
    assert {*product.fields.split()} <= {*text.split()}
    assert (stats["hits"], stats["misses"], stats["uncovered"], stats["errors"]) == (0, 1, {}, [])


ANSWERED = {
    "bmm": (
        Problem.gemm("bmm", batch=3, m=5, n=8, k=16, layout="nn"), torch.bmm,
        (rand(3, 5, 16), rand(3, 16, 8)), (rand(4, 5, 16), rand(4, 16, 8)), "bmm batch=4",
    ),
    "scaled_mm": (
        Problem.gemm("scaled_mm", m=8, n=16, k=32, scales="row"), scaled,
        (A, W, torch.rand(8, 1), torch.rand(1, 16)), (fp8(6, 32), W, torch.rand(6, 1), torch.rand(1, 16)),
        "scaled_mm m=6 n=16 k=32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("op", ["bmm", pytest.param("scaled_mm", marks=ROWS)])
def test_a_table_answers_with_aten(kit, table, op):
    problem, model, inputs, others, missed = ANSWERED[op]
    path = table({problem.text: kit.ATEN})
    gemmdb.inductor.enable(tables=[path], on_miss="error")
    with torch.no_grad():
        kit.close(kit.compiled(model, *inputs), model(*inputs))
        (entry,) = gemmdb.inductor.stats()["products"]
        assert (entry["problem"], entry["rung"], entry["config"]) == (problem.text, "exact", kit.ATEN.text)
        assert entry["table"] == str(path)
        # On a CPU no other kernel could serve it, so strict mode does not miss a row.
        kit.compiled(model, *others)
        *_, other = gemmdb.inductor.stats()["products"]
        assert other["problem"].startswith(missed)
        assert (other["rung"], other["config"]) == ("aten", kit.ATEN.text)
        assert other["note"].startswith("ATen is the only kernel for it; exact: no verdict")


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (torch.bmm, (torch.randn(3, 32, 32), torch.randn(3, 32, 32))),
        (scaled, (fp8(32, 64), fp8(64, 64), number(), number())),
    ],
    ids=["bmm", "scaled_mm"],
)
def test_an_answer_benchmarks_nothing_under_max_autotune(kit, model, inputs):
    with torch.no_grad(), force(kit.ATEN), inductor_config.patch(max_autotune=True):
        kit.close(kit.compiled(model, *inputs), model(*inputs))
    stats = gemmdb.inductor.stats()
    assert (stats["benchmarked"], stats["hits"]) == (0, 1)


def square(x: Any) -> Any:
    return torch.bmm(x, x)


CUBE, FP8 = (torch.randn(3, 8, 8),), (A, W, number())
UNCOVERED = {
    "a symbolic batch": ("bmm", square, CUBE, "bmm"),
    "baddbmm": ("bmm", lambda x: torch.baddbmm(x, x, x), CUBE, "baddbmm"),
    "integers": ("bmm", lambda x: torch.bmm(x.int(), x.int()), CUBE, ""),
    "overlapping matrices": ("bmm", lambda x: torch.bmm(x.as_strided((3, 8, 8), (8, 8, 1)), x), CUBE,
                             ""),
    "an fp8 output": ("scaled_mm", lambda a, w, s: scaled(a, w, s, s, out_dtype=None).float(), FP8,
                      "the output is one of"),
    "a scaled output": ("scaled_mm", lambda a, w, s: scaled(a, w, s, s, scale_result=s), FP8,
                        "the output is scaled"),
    "fnuz": ("scaled_mm", lambda a, w, s: scaled(a.float().to(torch.float8_e4m3fnuz), w, s, s), FP8,
             "dtype torch.float8_e4m3fnuz"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNCOVERED)
def test_what_is_no_problem_is_counted_as_uncovered(kit, name):
    op, model, inputs, reason = UNCOVERED[name]
    if name == "a symbolic batch":
        inputs = (inputs[0].clone(),)
        torch._dynamo.mark_dynamic(inputs[0], 0)
    with torch.no_grad(), force(TEMPLATES[op]):
        kit.close(kit.compiled(model, *inputs), model(*inputs))
    stats = gemmdb.inductor.stats()
    assert (stats["products"], stats["errors"]) == ([], [])
    ((found, count),) = stats["uncovered"].items()
    if reason in ("bmm", "baddbmm"):
        assert (found, count) == (reason, 1)
    else:
        assert found.startswith("aten.bmm.default: " if op == "bmm" else "aten._scaled_mm.default: ")
        assert reason in found


@pytest.mark.parametrize("op", ["bmm", pytest.param("scaled_mm", marks=ROWS)])
def test_a_symbolic_number_of_rows_has_a_range(kit, op):
    if op == "bmm":
        model, inputs = torch.bmm, (torch.randn(3, 5, 16), torch.randn(3, 16, 8))
        torch._dynamo.mark_dynamic(inputs[0], 1)
    else:
        model, inputs = scaled, (fp8(8, 32), W, torch.rand(8, 1), torch.rand(1, 16))
        for tensor in (inputs[0], inputs[2]):
            torch._dynamo.mark_dynamic(tensor, 0)
    with torch.no_grad(), force(NOTHING):
        kit.close(kit.compiled(model, *inputs), model(*inputs))
    (entry,) = gemmdb.inductor.stats()["products"]
    assert entry["ranges"] == {"m": [2, None]}
