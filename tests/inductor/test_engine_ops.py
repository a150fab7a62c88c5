"""Calls of serving engines' operators in real compiles: which are opened, as which GEMM, and which stay as they are."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import torch._inductor.config as inductor_config
from kit import engine_ops as engine
from kit.engine_ops import BF16, CUTLASS, E4M3, SGL_BLOCKS, SGL_FP8, SGL_INT8, TRITON_BLOCKS, TRITON_INT8, integers
from kit.gpu import make
from kit.sessions import FakeSession
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.utils import run_and_get_code

import gemmdb.inductor
from gemmdb import Problem
from gemmdb.errors import InputError
from gemmdb.hit import Hit
from gemmdb.inductor.benchmark import rules
from gemmdb.inductor.benchmark.confirm import ConfirmJob
from gemmdb.inductor.benchmark.trial import CPU, Trial
from gemmdb.inductor.decide import legality
from gemmdb.inductor.entry import active, install
from gemmdb.inductor.entry.open_ops import opened
from gemmdb.inductor.match import opening
from gemmdb.inductor.match.engine_ops import ENGINE_OPS
from gemmdb.settings import Policy, Settings

PATIENT = Policy(on_miss="aten", confirm=True, confirm_s=300.0)
STAYS = "the engine's operator stays"


@pytest.fixture(autouse=True)
def loaded():
    with engine.loaded():
        yield
        gemmdb.inductor.open_ops([])


def fp8(*sizes):
    return torch.randn(*sizes).to(E4M3)


def column(rows, blocks):
    """Scales of blocks that follow each other along the first dimension."""
    return torch.rand(blocks, rows).t()


def vllm(a, w, s, t, bias=None):
    return engine.scaled_mm(a, w.t(), s, t, bias=bias)


def vllm_blocks(a, w, s, t):
    return engine.scaled_mm(a, w.t(), s, t.t())


def triton_blocks(a, w, s, t):
    return torch.ops.vllm.w8a8_triton_block_scaled_mm_func(a, w, s, t, [128, 128], BF16)


def triton_int8(a, w, s, t):
    return torch.ops.vllm.int8_scaled_mm_func(a, w.t(), s, t, BF16)


def sgl_fp8(a, w, s, t, bias=None):
    return torch.ops.sgl_kernel.fp8_scaled_mm(a, w.t(), s, t, BF16, bias)


def sgl_int8(a, w, s, t):
    return torch.ops.sgl_kernel.int8_scaled_mm(a, w.t(), s, t, BF16, None)


def sgl_blocks(a, w, s, t):
    return torch.ops.sgl_kernel.fp8_blockwise_scaled_mm(a, w.t(), s, t.t(), BF16)


ROWS, NUMBERS = (torch.rand(8, 1), torch.rand(32, 1)), (torch.rand(1), torch.rand(()))
BLOCKS = (fp8(8, 256), fp8(128, 256), column(8, 2), torch.rand(1, 2))
SMALL, SMALL_INT8 = (fp8(8, 64), fp8(32, 64)), (integers(8, 64), integers(32, 64))
BIAS = torch.randn(32).to(BF16)
OPENED = {
    "vLLM, rows": (CUTLASS, vllm, (*SMALL, *ROWS), {"scales": "row"}),
    "vLLM, numbers": (CUTLASS, vllm, (*SMALL, *NUMBERS), {"scales": "tensor"}),
    "vLLM, bias": (CUTLASS, vllm, (*SMALL, *ROWS, BIAS), {"scales": "row", "bias": "1d"}),
    "vLLM, blocks": (CUTLASS, vllm_blocks, BLOCKS, {"scales": "block"}),
    "vLLM, int8": (CUTLASS, vllm, (*SMALL_INT8, *ROWS), {}),
    "vLLM, int8 with a number": (CUTLASS, vllm, (*SMALL_INT8, NUMBERS[0], ROWS[1], BIAS), {}),
    "vLLM, Triton's blocks": (TRITON_BLOCKS, triton_blocks, BLOCKS, {"scales": "block"}),
    "vLLM, Triton's int8": (TRITON_INT8, triton_int8, (*SMALL_INT8, *ROWS), {}),
    "SGLang, rows": (SGL_FP8, sgl_fp8, (*SMALL, *ROWS, BIAS), {"scales": "row", "bias": "1d"}),
    "SGLang, int8": (SGL_INT8, sgl_int8, (*SMALL_INT8, *ROWS), {}),
    "SGLang, blocks": (SGL_BLOCKS, sgl_blocks, BLOCKS, {"scales": "block"}),
}


@pytest.mark.parametrize("case", OPENED)
def test_a_call_is_the_gemm_that_a_table_knows(kit, case):
    name, model, inputs, fields = OPENED[case]
    assert gemmdb.inductor.open_ops(name) == {name: "opened"}
    op, rest = ("scaled_mm", fields) if inputs[0].dtype == E4M3 else ("int_mm", {"fusion": "scale"})
    (m, k), n = inputs[0].shape, inputs[1].shape[0]
    product = kit.only(kit.forced(None, model, *inputs))
    assert product["problem"] == Problem.gemm(op, m=m, n=n, k=k, **rest).text
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
    assert found[SGL_FP8].startswith(f"its schema is another than in sgl-kernel 0.3.21: {SGL_FP8}(Tensor mat_a, ")
    assert found[CUTLASS] == "opened"
    assert f"{SGL_FP8} is not opened" in caplog.text
    assert list(opened()) == [torch.ops._C.cutlass_scaled_mm.default]


def test_an_unknown_operator_is_an_error():
    with pytest.raises(InputError, match="cutlass_scaled_mn"):
        gemmdb.inductor.open_ops("_C::cutlass_scaled_mn")


class Rewriting(CustomGraphPass):
    """Puts gemmdb's operator in place of each call, and decides nothing."""

    def __call__(self, graph):
        for found in [opening.find(node, opened()) for node in list(graph.nodes)]:
            if found is not None:
                opening.rewrite(found)
                opening.remove(found.node)

    def uuid(self):
        return None


@pytest.mark.parametrize("case", OPENED)
def test_without_a_kernel_the_code_calls_the_engines_operator(kit, case):
    name, model, inputs, _ = OPENED[case]
    gemmdb.inductor.open_ops()
    gemmdb.inductor.enable(on_miss="aten")  # Registers the lowerings.

    def computed(a, *rest):
        """What the program computes may lie in another order than the operator takes."""
        return model((a.float() * 1.0).to(a.dtype), *rest) * 2

    with active.use(FakeSession()), inductor_config.patch(post_grad_custom_pre_pass=Rewriting()):
        found, (code,) = run_and_get_code(torch.compile(computed), *inputs)
    kit.close(found, computed(*inputs))
    assert f"torch.ops.{name.replace('::', '.')}.default(" in code
    assert "torch.ops.gemmdb.engine_mm.default(" not in code  # Inductor names it in the text of a check.


def found_kernel(rung):
    return FakeSession(lambda query: Hit(rung, make("narrow"), 50.0, 2.0, "table"), PATIENT.resolved(Settings.read()))


@pytest.mark.parametrize("rung", ["exact", "near", "sku", "model"])
@pytest.mark.parametrize("model", [vllm, sgl_fp8])
def test_a_kernel_that_was_not_timed_against_the_operator_is_not_served(kit, monkeypatch, rung, model):
    """No kernel of fp8 runs on a CPU, so the trial fails, whatever the table promises."""
    monkeypatch.setattr(legality, "hit_rejection", lambda hit, query: None)
    gemmdb.inductor.open_ops()
    gemmdb.inductor.enable(policy=PATIENT)
    with active.use(found_kernel(rung)):
        found, (code,) = run_and_get_code(torch.compile(model), *SMALL, *ROWS)
    kit.close(found, model(*SMALL, *ROWS))
    product = kit.only()
    assert (product["rung"], product["config"]) == (rung, kit.ATEN.text)
    assert product["note"].startswith(f"{STAYS}: not confirmed: ")
    assert "scaled_mm.default(" in code
    assert "gemmdb" not in code


def test_rows_of_a_table_do_not_answer_for_an_operator(monkeypatch):
    monkeypatch.setattr(legality, "hit_rejection", lambda hit, query: None)
    gemmdb.inductor.open_ops()
    seen = []
    monkeypatch.setattr(rules, "in_doubt", lambda decision, node=None: seen.append(in_doubt(decision)))
    gemmdb.inductor.enable(policy=PATIENT)
    with active.use(found_kernel("exact")):
        torch.compile(vllm)(*SMALL, *ROWS)
    assert seen == [True]


in_doubt = rules.in_doubt


@pytest.mark.parametrize("differs", [False, True])
def test_times_against_an_operator_are_not_stored_as_atens(monkeypatch, differs):
    jobs = []
    monkeypatch.setattr(legality, "hit_rejection", lambda hit, query: None)
    monkeypatch.setattr(ConfirmJob, "begin", lambda self, carry_out: jobs.append(self))
    monkeypatch.setattr(ConfirmJob, "time", lambda self: Trial([100.0] * 9, [50.0] * 9, CPU, differs))
    gemmdb.inductor.open_ops()
    gemmdb.inductor.enable(policy=PATIENT)
    with active.use(found_kernel("near")):
        torch.compile(vllm)(*SMALL, *ROWS)
    (job,) = jobs
    assert job.finish().rows == ()
    job.decisions = job.decision, *job.decisions
    job.decision = replace(job.decision, engine_op="")
    assert len(job.finish().rows) == (1 if differs else 2)


def test_keys_of_caches_name_what_is_open(table, kit):
    path = table({Problem.gemm("mm", m=8, n=32, k=64, dtype="fp32").text: kit.ATEN})
    for frozen in (False, True):
        gemmdb.inductor.enable(on_miss="aten", tables=[path], frozen=frozen)
        names = [[], [SGL_FP8], [SGL_FP8, CUTLASS], [CUTLASS, SGL_FP8]]
        keys, identities = [], []
        for one in names:
            gemmdb.inductor.open_ops(one)
            session = active.requested()
            keys.append((session.identity, install._system()))
            identities.append(str(session.frozen_to()))
        assert len(set(keys)) == 3
        assert keys[2] == keys[3]
        assert len(set(identities)) == (3 if frozen else 1)


def test_a_frozen_compile_keeps_the_operator(kit, monkeypatch):
    monkeypatch.setattr(legality, "hit_rejection", lambda hit, query: None)
    gemmdb.inductor.open_ops()
    session = found_kernel("exact")
    frozen = replace(session.policy, frozen=True).resolved(Settings.read())
    gemmdb.inductor.enable(on_miss="aten")
    with active.use(session.variant(policy=frozen)):
        found = torch.compile(vllm)(*SMALL, *ROWS)
    kit.close(found, vllm(*SMALL, *ROWS))
    assert kit.only()["note"] == f"{STAYS}: kernels are not timed against it (switched off by the policy)"


def test_strict_mode_does_not_fail_for_an_operator(kit):
    gemmdb.inductor.open_ops()
    gemmdb.inductor.enable(on_miss="error")
    kit.checked(vllm, *SMALL, *ROWS)
    assert kit.only()["rung"] == "aten"


def test_an_operator_is_recorded_in_a_workload(tmp_path):
    gemmdb.inductor.open_ops()
    with gemmdb.inductor.record(tmp_path / "work.json") as recording:
        torch.compile(vllm)(*SMALL, *ROWS)
    assert recording is not None
    assert "scaled_mm m=8 n=32 k=64" in (tmp_path / "work.json").read_text()
