"""The preset of the shipped table: what it must hold, and that every prefix of it is a sample of the whole."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from importlib import resources

import pytest
from kit.presets import preset

from gemmdb.generators.shapes.architectures import ARCHITECTURES, DECODE, DENSE, PREFILL
from gemmdb.generators.shapes.h200 import FLOORS, first_model
from gemmdb.generators.shapes.pools import core_pairs, core_products
from gemmdb.generators.shapes.strata import MOST_BYTES, MOST_US, call_us, spread
from gemmdb.key.problem import Problem

FIRST_PART = 4780
"""How many problems the preset began with: builds and reports refer to them by their place."""


@pytest.fixture(scope="module")
def problems() -> Sequence[Problem]:
    return preset("h200")


def test_every_op_has_as_many_problems_as_the_table_promises(problems: Sequence[Problem]) -> None:
    counts = Counter(problem.op for problem in problems)
    assert all(counts[op] >= least for op, least in {"mm": 1600, "addmm": 900, "int_mm": 650, "mixed_mm": 1100}.items())
    assert FIRST_PART < len(problems) <= FIRST_PART + 900


def test_the_first_part_stays_as_tables_were_built_from_it() -> None:
    file = resources.files("gemmdb.generators") / "presets" / "h200.json"
    items = json.loads(file.read_text(encoding="utf-8"))["problems"]
    lines = "\n".join(json.dumps(item) for item in items[:FIRST_PART])
    assert hashlib.sha256(lines.encode()).hexdigest() == (
        "190ee3bcd228a9515c3f4f22f2ee0c4d1dd6a45177b06699511a533d7dfac8ba"
    )


def test_the_first_model_comes_first(problems: Sequence[Problem]) -> None:
    leading = {Problem.gemm(**item) for item in first_model()}
    assert set(problems[: len(leading)]) == leading
    assert Problem.gemm("mm", m=16, n=4096, k=14336, fusion="pointwise") in leading
    assert Problem.gemm("mixed_mm", m=1, n=28672, k=4096, fusion="scale") in leading


@pytest.mark.parametrize("size", [200, 1000, 3000])
def test_a_prefix_is_a_sample_of_each_op_and_no_op_is_short(problems: Sequence[Problem], size: int) -> None:
    def classes(found: list[Problem]) -> Counter[tuple[str, str, str, bool]]:
        return Counter((p.op, p.a.dtype, p.fusion, p.m <= 64) for p in found)

    rest = problems[len(first_model()) : FIRST_PART]
    ops, whole, part = Counter(p.op for p in rest), classes(rest), classes(rest[:size])
    for kind, count in whole.items():
        expected = count / ops[kind[0]] * size * FLOORS[kind[0]] / sum(FLOORS.values())
        assert abs(part[kind] - expected) <= 3 + 0.35 * expected, kind
    found = Counter(p.op for p in problems[:3950])
    assert all(found[op] >= least for op, least in FLOORS.items())


@pytest.mark.parametrize("size", [150, 450, 750])
def test_a_prefix_of_what_was_appended_is_a_sample_of_it(problems: Sequence[Problem], size: int) -> None:
    def classes(found: list[Problem]) -> Counter[tuple[str, ...]]:
        return Counter((p.op, p.a.dtype, p.numerics.fp32, p.a.layout.order, p.b.layout.order) for p in found)

    rest = problems[FIRST_PART:]
    whole, part = classes(rest), classes(rest[:size])
    for kind, count in whole.items():
        expected = count / len(rest) * size
        assert abs(part[kind] - expected) <= 3 + 0.25 * expected, kind


def test_the_most_used_models_are_covered_whole_at_decode(problems: Sequence[Problem]) -> None:
    known = set(problems)
    for (n, k), fusion in core_products():
        for m in DECODE:
            assert Problem.gemm("mm", m=m, n=n, k=k, fusion=fusion) in known
            assert Problem.gemm("mixed_mm", m=m, n=n, k=k, fusion="scale") in known
    # Followed by the residual sum on one GPU, reduced over two first.
    assert dict(core_products())[4096, 14336] == "pointwise"
    assert dict(core_products())[4096, 7168] == "none"
    for m in PREFILL:
        assert Problem.gemm("mm", m=m, n=28672, k=4096) in known
    assert {(1024, 4096), (128256, 4096), (57344, 8192), (1280, 8192)} <= set(core_pairs())


def test_every_use_is_in_it(problems: Sequence[Problem]) -> None:
    def some(**wanted: object) -> bool:
        return any(all(getattr(p, name) == value for name, value in wanted.items()) for p in problems)

    assert {p.m for p in problems if p.op == "mm"} >= set(DENSE)
    for bias in ("1d", "full", "column"):
        assert any(p.op == "addmm" and p.bias and p.bias.kind == bias for p in problems)
    assert {(p.a.layout.order, p.b.layout.order) for p in problems if p.op == "mm" and min(p.m, p.n, p.k) > 1} == {
        ("row", "col"), ("row", "row"), ("col", "row"),
    }  # fmt: skip
    assert {p.numerics.fp32 for p in problems if p.a.dtype == "fp32"} == {"ieee", "tf32"}
    assert {p.b.dtype for p in problems if p.op == "mixed_mm"} == {"int8", "uint8"}
    assert some(op="mm", m=4096, n=4096, k=4096)
    assert some(op="mm", fusion="pointwise", m=4096)
    # A GPU never sees it: Inductor adds a bias in fp32 in what follows.
    assert not any(p.a.dtype == "fp32" for p in problems if p.op == "addmm" and p.fusion == "pointwise")
    assert any(p.k % 8 for p in problems)
    assert all(any((p.n, p.k) in model.pairs() for p in problems) for model in ARCHITECTURES.values())


def test_what_costs_too_much_is_left_out(problems: Sequence[Problem]) -> None:
    assert max(map(call_us, problems)) <= MOST_US
    assert max(problem.bytes for problem in problems) <= MOST_BYTES
    assert call_us(Problem.gemm("mm", m=16384, n=16384, k=16384)) > MOST_US


def test_spreading_takes_one_of_each_m_in_turn() -> None:
    found = [{"op": "mm", "m": m, "n": n, "k": 8} for m in (1, 2, 3) for n in range(8, 8 * (m + 1), 8)]
    assert [sorted(item["m"] for item in part) for part in (spread(found)[:3], spread(found)[3:5])] == [
        [1, 2, 3],
        [2, 3],
    ]
    assert spread(found) == spread(reversed(found))
    assert {item["n"] for item in spread(found, turns=("n",))[:3]} == {8, 16, 24}
