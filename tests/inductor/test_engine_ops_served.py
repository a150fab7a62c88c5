"""What runs for an opened call of an engine's operator: a kernel that was timed against it, or the operator itself."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import torch._inductor.config as inductor_config
from kit import engine_ops as engine
from kit.engine_calls import (
    OPENED,
    PATIENT,
    ROWS,
    SMALL,
    STAYS,
    sgl_fp8,
    vllm,
)
from kit.engine_ops import CUTLASS, SGL_FP8
from kit.gpu import make
from kit.sessions import FakeSession
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.utils import run_and_get_code

import gemmdb.inductor
from gemmdb import Problem
from gemmdb.hit import Hit
from gemmdb.inductor.benchmark import rules
from gemmdb.inductor.benchmark.confirm import ConfirmJob
from gemmdb.inductor.benchmark.trial import CPU, Trial
from gemmdb.inductor.decide import legality
from gemmdb.inductor.entry import active, install
from gemmdb.inductor.entry.open_ops import opened
from gemmdb.inductor.match import opening
from gemmdb.settings import Settings


@pytest.fixture(autouse=True)
def loaded():
    with engine.loaded():
        yield
        gemmdb.inductor.open_ops([])


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
