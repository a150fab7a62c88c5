"""Calls of serving engines' operators in real compiles: which are opened, as which GEMM, and which stay as they are."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from kit import engine_ops as engine
from kit.engine_calls import BIAS, BLOCKS, NUMBERS, OPENED, PATIENT, ROWS, SMALL, STAYS, column, fp8, vllm, vllm_blocks
from kit.engine_ops import BF16, CUTLASS, E4M3, SGL_FP8, TRITON_INT8

import gemmdb.inductor
from gemmdb import Problem
from gemmdb.errors import InputError
from gemmdb.inductor.entry.open_ops import opened
from gemmdb.inductor.match.engine_ops import ENGINE_OPS


@pytest.fixture(autouse=True)
def loaded():
    with engine.loaded():
        yield
        gemmdb.inductor.open_ops([])


@pytest.mark.parametrize("case", OPENED)
def test_a_call_is_the_gemm_that_a_table_knows(kit, case):
    name, model, inputs, fields = OPENED[case]
    assert gemmdb.inductor.open_ops(name) == {name: "opened"}
    usual = {E4M3: {"op": "scaled_mm"}, torch.int8: {"op": "int_mm", "fusion": "scale"}}.get(inputs[0].dtype, {})
    (m, k), n = inputs[0].shape, inputs[1].shape[0]
    product = kit.only(kit.forced(None, model, *inputs))
    assert product["problem"] == Problem.gemm(**{**usual, **fields}, m=m, n=n, k=k).text
    assert (product["evidence"]["opened"], product["config"]) == (name, kit.ATEN.text)
    assert product["note"].startswith(STAYS)


@pytest.mark.parametrize("version", [True, False], ids=["second", "first"])
def test_both_forms_of_an_output_that_is_written_to(kit, version):
    gemmdb.inductor.open_ops()
    stats = kit.forced(None, vllm, *SMALL, *ROWS, enable_auto_functionalized_v2=version)
    assert kit.only(stats)["evidence"] == {"opened": CUTLASS}


def test_what_follows_is_part_of_the_key(kit):
    gemmdb.inductor.open_ops()
    stats = kit.forced(None, lambda *inputs: vllm(*inputs).view(2, 4, 32).relu(), *SMALL, *ROWS)
    assert " fusion=pointwise " in kit.only(stats)["problem"]


def test_nothing_is_opened_by_default(kit):
    assert kit.forced(None, vllm, *SMALL, *ROWS)["products"] == []
    gemmdb.inductor.open_ops(SGL_FP8)
    assert kit.forced(None, vllm, *SMALL, *ROWS)["products"] == []
    gemmdb.inductor.open_ops()
    gemmdb.inductor.open_ops([])
    assert kit.forced(None, vllm, *SMALL, *ROWS)["products"] == []


def partly(a, w, s, t):
    out = torch.zeros(16, 32, dtype=BF16)
    torch.ops._C.cutlass_scaled_mm(out[:8], a, w.t(), s, t, None)
    return out


def of_the_program(out, a, w, s, t):
    torch.ops._C.cutlass_scaled_mm(out, a, w.t(), s, t, None)
    return out + 1


def twice(a, w, s, t):
    out = vllm(a, w, s, t)
    torch.ops._C.cutlass_scaled_mm(out, a, w.t(), s, t, None)
    return out


ELSEWHERE = "not memory that the graph allocates for this call alone"
REFUSED = {
    "a part of its memory": (partly, (*SMALL, *ROWS), ELSEWHERE),
    "the program's memory": (of_the_program, (torch.zeros(8, 32, dtype=BF16), *SMALL, *ROWS), ELSEWHERE),
    "memory with content": (twice, (*SMALL, *ROWS), ELSEWHERE),
    "rows of A apart": (vllm, (fp8(8, 80)[:, :64], SMALL[1], *ROWS), "rows of A"),
    "columns of B apart": (vllm, (SMALL[0], fp8(32, 80)[:, :64], *ROWS), "columns of B"),
    "scales apart": (vllm, (*SMALL, torch.rand(8, 2)[:, :1], ROWS[1]), "K and N are not several"),
    "two kinds of scales": (vllm, (*SMALL, NUMBERS[0], ROWS[1]), "a vector the other"),
    "scales of fp64": (vllm, (*SMALL, ROWS[0].double(), ROWS[1]), "scales of torch.float64"),
    "bias of fp32": (vllm, (*SMALL, *ROWS, BIAS.float()), "the bias is not"),
    "one block along K": (vllm_blocks, (fp8(8, 128), fp8(256, 128), column(8, 1), torch.rand(2, 1)), "K and N are not"),
    "scales by rows": (vllm_blocks, (*BLOCKS[:2], torch.rand(8, 2), BLOCKS[3]), "do not follow each other along M"),
    "e5m2": (vllm, (SMALL[0].to(torch.float8_e5m2), SMALL[1], *ROWS), "operands of torch.float8_e5m2"),
}


def copies(inputs):
    """Tensors with the same strides."""
    return [torch.empty_strided(one.size(), one.stride(), dtype=one.dtype).copy_(one) for one in inputs]


@pytest.mark.parametrize("case", REFUSED)
def test_a_call_that_is_not_proven_stays_with_the_reason(kit, case):
    gemmdb.inductor.open_ops()
    model, inputs, reason = REFUSED[case]
    compiled, wanted = torch.compile(model), model(*copies(inputs))
    with gemmdb.inductor.force(kit.left_alone):
        kit.close(compiled(*copies(inputs)), wanted)
    found = list(gemmdb.inductor.stats()["uncovered"])
    assert found
    assert all(one.startswith(f"{CUTLASS}: ") for one in found)
    assert any(reason in one for one in found)


def test_symbolic_rows_stay(kit):
    gemmdb.inductor.open_ops()
    gemmdb.inductor.enable(policy=PATIENT)

    def model(x, w, t):
        scale = x.abs().amax(1, keepdim=True) / 448
        return vllm((x / scale).to(E4M3), w, scale, t)

    compiled = torch.compile(model)
    for rows in (8, 24):
        x = torch.randn(rows, 64)
        torch._dynamo.mark_dynamic(x, 0)
        kit.close(compiled(x, SMALL[1], ROWS[1]), model(x, SMALL[1], ROWS[1]))
    product = kit.only()
    assert (product["evidence"], product["note"]) == ({"opened": CUTLASS}, f"{STAYS}: its sizes are symbolic")


def test_what_is_not_loaded_stays_closed():
    op = replace(ENGINE_OPS[TRITON_INT8], name="vllm::not_loaded")
    assert str(op.rejection()) == "it is not loaded"


def test_another_declaration_is_refused_by_name(caplog, monkeypatch):
    other = (
        "(Tensor mat_a, Tensor mat_b, Tensor scales_a, Tensor scales_b, ScalarType out_dtype, Tensor bias) -> Tensor"
    )
    op = replace(ENGINE_OPS[SGL_FP8], schema=other)
    monkeypatch.setitem(ENGINE_OPS, SGL_FP8, op)
    found = gemmdb.inductor.open_ops([SGL_FP8, CUTLASS])
    assert found[SGL_FP8].startswith(f"its schema differs from that of sgl-kernel 0.3.21: {SGL_FP8}(Tensor mat_a, ")
    assert found[CUTLASS] == "opened"
    assert f"{SGL_FP8} is not opened" in caplog.text
    assert list(opened()) == [torch.ops._C.cutlass_scaled_mm.default]


def test_an_unknown_operator_is_an_error():
    with pytest.raises(InputError, match="cutlass_scaled_mn"):
        gemmdb.inductor.open_ops("_C::cutlass_scaled_mn")
