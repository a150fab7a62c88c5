"""What holds for GEMMs of batches, of fp8 operands and of groups alike in real compiles: which problem each is, which
answer it gets, and what is no problem."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit import program_batch
from kit.gemm_programs import BATCHED, BY_ROWS, ROWS, SCALED, A, W, fp8, number, rand, scaled
from kit.gpu import make

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.inductor import force
from gemmdb.inductor.observe.journal import JOURNAL

VALUES = {"block_m": 64, "block_n": 64, "block_k": 32, "group_m": 8, "stages": 3, "warps": 4}
TEMPLATES = {
    "bmm": Config.of("triton", "inductor_bmm", **VALUES),
    "_scaled_mm": Config.of("triton", "inductor_mm", **{**VALUES, "block_k": 64}),
    "_grouped_mm": make("grouped"),
}
OFFSETS, WEIGHTS = torch.tensor((3, 3, 9, 16), dtype=torch.int32), rand(4, 64, 32)


def grouped(x: Any, w: Any, offs: Any) -> Any:
    """Experts with weights [N, K]."""
    return torch._grouped_mm(x, w.transpose(-2, -1), offs=offs)


def as_stored(x: Any, w: Any, offs: Any) -> Any:
    """Experts with weights [K, N]."""
    return torch._grouped_mm(x, w, offs)


def gradient(x: Any, y: Any, offs: Any) -> Any:
    return torch._grouped_mm(x.t(), y, offs=offs)


X = rand(16, 32)
EXPERTS = (X, WEIGHTS, OFFSETS)
OF_ROWS = "grouped_mm m=16 n=64 k=32 "
GROUPED = {
    "weights as a linear's": (grouped, EXPERTS, OF_ROWS, "a=bf16:row:8 b=bf16:col:8 fusion=none groups=4 ragged=m"),
    "weights as stored": (as_stored, (X, rand(4, 32, 64), OFFSETS), OF_ROWS, "b=bf16:row:8 groups=4 ragged=m"),
    "padded rows": (lambda x, w, o: grouped(x[:, :32], w, o), (rand(16, 48), WEIGHTS, OFFSETS), OF_ROWS,
                    "a=bf16:row-padded:8"),
    "an epilogue": (lambda *x: torch.relu(grouped(*x)), EXPERTS, OF_ROWS, "fusion=pointwise"),
    "one group": (grouped, (X, WEIGHTS[:1], OFFSETS[3:]), OF_ROWS, "groups=1 ragged=m"),
    "a gradient of weights": (gradient, (X, rand(16, 64), OFFSETS), "grouped_mm m=32 n=64 k=16 ",
                              "a=bf16:col:8 b=bf16:row:8 groups=4 ragged=k"),
}  # fmt: skip
if hasattr(torch.nn.functional, "grouped_mm"):
    GROUPED["the public function"] = (
        lambda x, w, o: torch.nn.functional.grouped_mm(x, w.mT, offs=o), EXPERTS, OF_ROWS, "groups=4 ragged=m"
    )  # fmt: skip


PROGRAMS = {
    "batches": [(one.model, one.inputs, one.head, one.fields) for one in BATCHED.values()],
    "scales": [(one.model, one.inputs, one.head, one.fields) for one in SCALED.values()],
    "row scales": [(one.model, one.inputs, one.head, one.fields) for one in BY_ROWS.values()],
    "groups": list(GROUPED.values()),
}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=ROWS if "rows" in kind else ()) for kind in PROGRAMS])
def test_a_gemm_is_a_problem_and_a_miss_is_atens(kit, kind):
    programs = PROGRAMS[kind]
    with force(kit.left_alone), torch.no_grad():
        program_batch.compiled([model for model, *_ in programs], [inputs for _, inputs, *_ in programs])
    stats = gemmdb.inductor.stats()
    for event, (_, _, head, fields) in zip(JOURNAL.events, programs, strict=True):
        assert event.problem.startswith(head)
        assert {*fields.split()} <= {*event.problem.split()}
    assert (stats["hits"], stats["misses"], stats["uncovered"], stats["errors"]) == (0, len(programs), {}, [])


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
    "grouped_mm": (
        Problem.gemm("grouped_mm", m=16, n=64, k=32, groups=4), grouped, EXPERTS,
        (X, rand(5, 64, 32), torch.tensor((3, 3, 9, 9, 16), dtype=torch.int32)), "grouped_mm m=16 n=64 k=32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("op", ["bmm", pytest.param("scaled_mm", marks=ROWS), "grouped_mm"])
def test_a_table_answers_with_aten(kit, table, op):
    problem, model, inputs, others, missed = ANSWERED[op]
    path = table({problem.text: kit.ATEN})
    gemmdb.inductor.enable(tables=[path], on_miss="error")
    entry = kit.only(kit.checked(model, *inputs))
    assert (entry["problem"], entry["rung"], entry["config"]) == (problem.text, "exact", kit.ATEN.text)
    assert entry["table"] == str(path)
    # On a CPU no other kernel could serve it, so strict mode does not miss a row.
    *_, other = kit.checked(model, *others)["products"]
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
    stats = kit.forced(kit.ATEN, model, *inputs, max_autotune=True)
    assert (stats["benchmarked"], stats["hits"]) == (0, 1)


def square(x: Any) -> Any:
    return torch.bmm(x, x)


CUBE, FP8 = (torch.randn(3, 8, 8),), (A, W, number())
UNCOVERED = {
    "a symbolic batch": ("bmm", square, CUBE, None),
    "baddbmm": ("bmm", lambda x: torch.baddbmm(x, x, x), CUBE, None),
    "integers": ("bmm", lambda x: torch.bmm(x.int(), x.int()), CUBE, ""),
    "overlapping matrices": ("bmm", lambda x: torch.bmm(x.as_strided((3, 8, 8), (8, 8, 1)), x), CUBE, ""),
    "an fp8 output": ("_scaled_mm", lambda a, w, s: scaled(a, w, s, s, out_dtype=None).float(), FP8,
                      "the output is one of"),
    "a scaled output": ("_scaled_mm", lambda a, w, s: scaled(a, w, s, s, scale_result=s), FP8, "the output is scaled"),
    "fnuz": ("_scaled_mm", lambda a, w, s: scaled(a.float().to(torch.float8_e4m3fnuz), w, s, s), FP8,
             "dtype torch.float8_e4m3fnuz"),
    "groups of one size": ("_grouped_mm", lambda a, b: torch._grouped_mm(a, b), (rand(4, 8, 32), rand(4, 32, 64)),
                           "all groups have the same size, as in a bmm"),
    "groups of columns": ("_grouped_mm", lambda a, b, o: torch._grouped_mm(a, b, offs=o),
                          (rand(4, 8, 32), rand(32, 16), OFFSETS), "the groups divide the columns"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNCOVERED)
def test_what_is_no_problem_is_counted_as_uncovered(kit, name):
    operator, model, inputs, reason = UNCOVERED[name]
    if name == "a symbolic batch":
        inputs = (inputs[0].clone(),)
        torch._dynamo.mark_dynamic(inputs[0], 0)
    stats = kit.forced(TEMPLATES[operator], model, *inputs)
    assert (stats["products"], stats["errors"]) == ([], [])
    ((found, count),) = stats["uncovered"].items()
    if reason is None:
        assert (found, count) == ("baddbmm" if name == "baddbmm" else "bmm", 1)
    else:
        assert found.startswith(f"aten.{operator}.default: ")
        assert reason in found


SYMBOLIC = {
    "bmm": (torch.bmm, (torch.randn(3, 5, 16), torch.randn(3, 16, 8)), {0: 1}),
    "scaled_mm": (scaled, (fp8(8, 32), W, torch.rand(8, 1), torch.rand(1, 16)), {0: 0, 2: 0}),
    "grouped_mm": (grouped, (X.clone(), WEIGHTS, OFFSETS), {0: 0}),
}
"""Programs with the dimension of some inputs that is symbolic."""


@pytest.mark.parametrize("op", ["bmm", pytest.param("scaled_mm", marks=ROWS), "grouped_mm"])
def test_a_symbolic_number_of_rows_has_a_range(kit, op):
    model, inputs, dimensions = SYMBOLIC[op]
    for place, dimension in dimensions.items():
        torch._dynamo.mark_dynamic(inputs[place], dimension)
    assert kit.only(kit.forced(None, model, *inputs))["ranges"] == {"m": [2, None]}
