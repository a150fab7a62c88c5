"""Weights in the layouts of rivals, and rivals that a CPU can run, against a float64 reference."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from benchmarks.peers import packing, quack_kernels, torch_kernels, worker
from benchmarks.peers.case import Case, Made, Unfit, each, first_rows
from benchmarks.peers.ops import OPS, padded
from benchmarks.peers.rivals import Rival
from gemmdb.generators.measure.correctness import reference
from gemmdb.generators.measure.cuda.bench import Bench
from gemmdb.generators.measure.operands import operands
from gemmdb.generators.measure.tolerance import tolerance
from gemmdb.inductor.match.ops import dequantised
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Protocol

CPU = torch.device("cpu")


def case_of(problem: Problem) -> Case:
    """A case with two copies on the CPU."""
    made = operands(problem, CPU, 1)
    return Case(problem, [made, made])


def weight_of(name: str) -> tuple[Case, packing.Weight]:
    """The weight of a small problem of an op."""
    case = case_of(OPS[name].problem(3, 256, 384))
    return case, case.weights()[0]


def test_an_int4_weight_has_the_values_of_its_problem() -> None:
    case, weight = weight_of("int4")
    made, own = case.sets[0], case.problem.int4
    assert own is not None
    assert torch.equal(weight.exact, dequantised(made.b, made.scale, None, own, torch.float64))


def test_an_int8_weight_has_the_values_of_its_problem() -> None:
    case, weight = weight_of("int8-weight")
    made = case.sets[0]
    assert made.scale is not None
    assert torch.equal(weight.exact, (made.b.double() * made.scale.double()).t())


@pytest.mark.parametrize("name", ["int4", "int8-weight"])
def test_words_hold_the_codes_from_the_lowest_bits_up(name: str) -> None:
    _, weight = weight_of(name)
    found, per = packing.words(weight.codes, weight.bits), 32 // weight.bits
    assert found.dtype is torch.int32
    assert found.shape == (256, 384 // per)
    for place in range(per):
        got = found.to(torch.int64) >> weight.bits * place & (1 << weight.bits) - 1
        assert torch.equal(got, weight.codes[:, place::per].to(torch.int64))
    gptq = packing.gptq(weight)
    assert gptq.shape == (384 // per, 256)
    assert int(gptq[1, 7]) >> weight.bits & (1 << weight.bits) - 1 == int(weight.codes[7, per + 1])


def test_an_int4_weight_in_bytes_is_one_in_words() -> None:
    """humming takes the bytes of a problem as they are."""
    case, weight = weight_of("int4")
    assert torch.equal(packing.words(weight.codes, 4), case.sets[0].b.view(torch.int32))


def test_tinygemm_has_the_first_of_two_in_the_high_bits() -> None:
    _, weight = weight_of("int4")
    packed = packing.tinygemm_bytes(weight)
    assert torch.equal(packed >> 4, weight.codes[:, ::2])
    assert torch.equal(packed & 15, weight.codes[:, 1::2])


def test_scales_of_groups_are_transposed_in_blocks_of_64_columns() -> None:
    scale = torch.arange(128.0).repeat(2, 1).t()  # [n, groups]: the number of the column.
    found = packing.marlin_scales(packing.Weight(torch.zeros(128, 256, dtype=torch.uint8), scale, 4))
    assert found.shape == (2, 128)
    blocks = found[1].view(2, 8, 8)
    assert torch.equal(blocks[1].t().reshape(-1), torch.arange(64.0, 128.0))


def test_scales_of_columns_lie_as_threads_hold_them() -> None:
    weight = packing.Weight(torch.zeros(64, 64, dtype=torch.uint8), torch.arange(64.0)[:, None], 8)
    found = packing.marlin_scales(weight)
    assert found[0, :16].tolist() == [0, 1, 8, 9, 16, 17, 24, 25, 2, 3, 10, 11, 18, 19, 26, 27]
    assert sorted(found[0].tolist()) == list(range(64))


def test_rows_of_groups_begin_at_multiples() -> None:
    place, group = packing.padded_rows([3, 3, 8], 4)
    assert place.tolist() == [0, 1, 2, 4, 5, 6, 7, 8]
    assert group.tolist() == [0, 0, 0, -1, 2, 2, 2, 2, 2, -1, -1, -1]


@pytest.mark.parametrize("name", ["int4", "int8-weight", "int8", "grouped"])
def test_what_a_user_can_spell_is_right(name: str) -> None:
    op = OPS[name]
    case = case_of(op.problem(40, 256, 256, 4 if op.grouped else 0))
    exact = [reference(case.problem, made) for made in case.sets[:1]]
    made = torch_kernels.cublas(case)
    assert worker.error(made, 2, exact) <= tolerance(case.problem)


class Quack:
    """Stands for QuACK's module: a GEMM with the arguments and defaults of QuACK's, summed in fp32."""

    def __init__(self) -> None:
        self.factors = list[int | None]()

    def gemm(
        self, a: torch.Tensor, b: torch.Tensor, cu_seqlens_m: torch.Tensor | None = None, split_k: int | None = 1
    ) -> torch.Tensor:
        self.factors.append(split_k)
        if cu_seqlens_m is None:
            return (a.float() @ b.float()).to(a.dtype)
        assert (cu_seqlens_m.dtype, int(cu_seqlens_m[0]), int(cu_seqlens_m[-1])) == (torch.int32, 0, len(a))
        rows = a.float().split(cu_seqlens_m.diff().tolist())
        return torch.cat([part @ weight.float() for part, weight in zip(rows, b, strict=True)]).to(a.dtype)


@pytest.mark.parametrize(
    ("function", "name", "groups", "factor"),
    [("dense", "bf16", 0, 1), ("split_k", "bf16", 0, None), ("grouped", "grouped", 4, 1)],
)
def test_quack_gets_the_operands_that_it_documents(
    monkeypatch: pytest.MonkeyPatch, function: str, name: str, groups: int, factor: int | None
) -> None:
    quack = Quack()
    monkeypatch.setattr(quack_kernels, "library", lambda: quack)
    case = case_of(OPS[name].problem(40, 256, 256, groups))
    exact = [reference(case.problem, made) for made in case.sets[:1]]
    assert worker.error(getattr(quack_kernels, function)(case), 2, exact) <= tolerance(case.problem)
    assert set(quack.factors) == {factor}
    with pytest.raises(Unfit):
        getattr(quack_kernels, function)(case_of(OPS[name].problem(40, 256, 252, groups)))


@pytest.mark.parametrize(("name", "m", "rows"), [("int8", 1, 32), ("int8", 16, 32), ("int8", 17, 17), ("bf16", 1, 1),
                                                 ("fp8-block", 1, 4), ("fp8-block", 14, 16), ("fp8-block", 64, 64),
                                                 ("fp8-row", 1, 1), ("grouped", 3, 3)])  # fmt: skip
def test_a_program_has_the_rows_that_torch_takes(name: str, m: int, rows: int) -> None:
    problem = OPS[name].problem(m, 1024, 512, 4 if OPS[name].grouped else 0)
    assert padded(problem) == OPS[name].problem(rows, 1024, 512, 4 if OPS[name].grouped else 0)


@pytest.mark.parametrize("name", ["int8", "fp8-block"])
def test_the_first_rows_of_a_program_are_the_problem(name: str) -> None:
    problem = OPS[name].problem(6, 256, 512)
    many = padded(problem)
    whole = operands(many, CPU, 1)
    part = first_rows(whole, problem.m)
    assert part.a.shape == (6, 512)
    assert first_rows(whole, many.m) is whole
    exact = reference(many, whole)
    own = reference(problem, part)
    assert torch.allclose(own.exact, exact.exact[:6], rtol=1e-12)  # Sums in float64 depend on the number of rows.
    assert own.sizes == (6, 256)


def test_the_rows_that_a_program_adds_are_cut_off() -> None:
    problem = OPS["int8"].problem(3, 256, 256)
    made = operands(padded(problem), CPU, 1)
    bench = Bench(padded(problem), [made.named], [reference(padded(problem), made)])
    case = Case(problem, [first_rows(made, 3)], bench)
    assert case.program[0].m == 32
    assert worker.error(torch_kernels.cublas(case), 1, case.expected) <= tolerance(problem)


def test_a_rival_that_is_not_exact_runs_in_its_exact_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(OPS["bf16"].problem(4, 64, 72))
    loaded = list[str]()

    def load(rival: Rival) -> object:
        loaded.append(rival.adapter)
        factor = 1.0 if rival.adapter == "x:exact" else 1.5
        return lambda case: each([lambda made=made: made.a @ made.b * factor for made in case.sets])

    monkeypatch.setattr(Rival, "load", load)
    exact = [reference(case.problem, case.sets[0])]
    _, facts = worker.ready(Rival("mine", ("bf16",), "x:usual", exact="x:exact"), case, exact)
    assert loaded == ["x:usual", "x:exact"]
    assert facts["error"] <= tolerance(case.problem) < facts["inexact"]
    _, facts = worker.ready(Rival("mine", ("bf16",), "x:exact", exact="x:other"), case, exact)
    assert "inexact" not in facts
    _, facts = worker.ready(Rival("mine", ("bf16",), "x:usual"), case, exact)
    assert facts["error"] > tolerance(case.problem), "it has no other mode"


def test_a_rival_that_fails_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(OPS["bf16"].problem(4, 64, 72))
    exact = [reference(case.problem, case.sets[0])]
    rival = Rival("mine", ("bf16",), "x:y")

    def found(adapter: object) -> tuple[object, dict[str, object]]:
        monkeypatch.setattr(Rival, "load", lambda _: adapter)
        return worker.ready(rival, case, exact)

    def unfit(case: Case) -> Made:
        case.multiple(n=64, k=64)
        raise AssertionError("k is 72")

    def right(case: Case) -> Made:
        return each([lambda made=made: made.a @ made.b for made in case.sets])

    def raises(_: Case) -> Made:
        raise RuntimeError("no\nkernel")

    with pytest.raises(Unfit):
        unfit(case)
    assert found(unfit)[1]["failure"] == "k is no multiple of 64"
    assert str(found(raises)[1]["failure"]).startswith("RuntimeError: no")
    call, facts = found(right)
    assert call is not None
    assert float(str(facts["error"])) <= tolerance(case.problem)
    missing, facts = worker.ready(Rival("other", (), "x:y", "no_such_package"), case, exact)
    assert (missing, facts) == (None, {"failure": "no_such_package is not installed"})


def test_a_call_that_cannot_be_captured_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rival may synchronize or allocate in ways that a CUDA graph forbids, which shows only in the capture."""

    def capture(call: object, *_: object) -> str:
        if call == "synchronizes":
            raise RuntimeError("operation not permitted when stream is capturing")
        return f"graph of {call}"

    monkeypatch.setattr(worker, "capture", capture)
    facts: dict[str, dict[str, object]] = {"default": {}, "mine": {"error": 0.001}}
    found = worker.graphs({"default": "runs", "mine": "synchronizes"}, 2, Protocol("graph", "cold", 5, 3), facts)
    assert found == {"default": "graph of runs"}
    assert facts["mine"]["failure"] == "no CUDA graph: RuntimeError: operation not permitted when stream is capturing"
    assert "failure" not in facts["default"]
