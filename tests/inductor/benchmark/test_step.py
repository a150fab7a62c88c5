"""What a trial compiles is begun at the joint stage, and taken over by the post-grad pass."""

from types import SimpleNamespace

import pytest
import torch
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
from kit.devices import H200
from kit.horizontal import NARROW, POLICY, half, session, traced

import gemmdb.inductor
from gemmdb.hit import Hit
from gemmdb.inductor.benchmark import confirm as confirming
from gemmdb.inductor.benchmark import horizontal as fusing
from gemmdb.inductor.benchmark import limits, rules
from gemmdb.inductor.benchmark.confirm import Confirmation, ConfirmJob
from gemmdb.inductor.benchmark.horizontal import HorizontalJob, Timed
from gemmdb.inductor.benchmark.step import Step
from gemmdb.inductor.benchmark.trial import Untimed
from gemmdb.inductor.decide import deciding
from gemmdb.inductor.entry import active
from gemmdb.inductor.entry.joint_pass import JointPass
from gemmdb.inductor.entry.post_grad_pass import PostGradPass
from gemmdb.inductor.lower.adapter import state
from gemmdb.inductor.lower.decomposed import DecomposedGemms
from gemmdb.inductor.match import extract
from gemmdb.inductor.match import horizontal_members as members
from gemmdb.rejected import Rejected

linear = torch.nn.functional.linear


class Compiled:
    """Code whose kernels are ready."""

    def ready(self, seconds):
        return True


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Products are looked up as if they ran on an H200."""
    monkeypatch.setattr(extract, "device", lambda of: H200)
    monkeypatch.setattr(rules, "device_rejection", lambda device: None)


@pytest.fixture
def stages(monkeypatch):
    """The stage in which each trial was begun. One kernel is faster than two; single answers cannot be timed."""
    begun, now = [], ["joint"]

    def begin(trial, steer):
        begun.append((now[0], type(trial).__name__))
        trial.begun = (Compiled(),)

    def unconfirmed(job):
        raise Untimed("its times vary")

    def post_grad(self, graph):
        now[0] = "post-grad"
        return original(self, graph)

    original = PostGradPass.__call__
    monkeypatch.setattr(PostGradPass, "__call__", post_grad)
    monkeypatch.setattr(members, "_GPUS", ("cpu", "cuda"))
    monkeypatch.setattr(rules, "confirm_rejection", lambda query, policy: None)
    monkeypatch.setattr(fusing, "_KNOWN", {})
    monkeypatch.setattr(state, "compiles_in_workers", lambda: True)
    for kind, finish in ((HorizontalJob, lambda job: Timed(5.0, 10.0)), (ConfirmJob, unconfirmed)):
        monkeypatch.setattr(kind, "begin", begin)
        monkeypatch.setattr(kind, "finish", finish)
    return begun


def compiled(function, *tensors, hit=None, gradients=False, **patches):
    gemmdb.inductor.enable()
    of = session(us=0.1, find=lambda query: hit)
    with active.use(of), inductor_config.patch({"compile_threads": 2, **patches}), torch.set_grad_enabled(gradients):
        found = torch.compile(function)(*tensors)
    torch.testing.assert_close(found, function(*tensors), rtol=0.05, atol=0.15)
    return gemmdb.inductor.stats()


def gated(x, first, second):
    return linear(x, first).relu() * linear(x, second)


def alone(x, weight):
    return linear(x, weight).relu()


X, FIRST, SECOND = half(8, 64), half(64, 64) / 8, half(64, 64) / 8
NEAR = Hit("near", NARROW, 5.0, 2.0, "guess")


def test_groups_are_begun_once_before_inductors_passes(stages):
    stats = compiled(gated, X, FIRST, SECOND)
    assert stages == [("joint", "HorizontalJob")]
    assert stats["errors"] == []
    assert sum(product["count"] for product in stats["products"]) == 2, "nothing is counted twice"


def test_doubted_answers_are_begun_once_before_inductors_passes(stages, on_a_gpu):
    stats = compiled(alone, X, FIRST, hit=NEAR)
    assert stages == [("joint", "ConfirmJob")]
    assert stats["errors"] == []
    assert [product["note"] for product in stats["products"]] == ["not confirmed: its times vary"]


def test_an_algorithm_that_is_searched_for_is_not_begun(monkeypatch):
    of, begun = session(), []
    joint = JointPass(of, PostGradPass(of, DecomposedGemms(of)))
    ours, guess = object(), object()
    monkeypatch.setattr(JointPass, "_decided", lambda self, graph: [("first", ours), ("second", guess)])
    monkeypatch.setattr("gemmdb.inductor.entry.joint_pass.is_guess", lambda decision: decision is guess)
    monkeypatch.setattr(fusing.Fusion, "begin", lambda self, pairs: set())
    monkeypatch.setattr(Confirmation, "begin", lambda self, pairs: begun.extend(pairs))
    monkeypatch.setattr(state, "compiles_in_workers", lambda: True)
    joint._begin_trials(traced(alone, X, FIRST).graph)
    assert begun == [("first", ours)]


def test_a_graph_with_a_backward_is_left_for_later(stages, on_a_gpu):
    compiled(alone, X, FIRST.clone().requires_grad_(), hit=NEAR, gradients=True)
    assert {stage for stage, _ in stages} == {"post-grad"}


def test_without_workers_nothing_would_be_gained(stages, monkeypatch):
    monkeypatch.setattr(state, "compiles_in_workers", lambda: False)
    compiled(gated, X, FIRST, SECOND)
    assert stages == [("post-grad", "HorizontalJob")]


def test_one_thread_has_no_workers():
    with inductor_config.patch(compile_threads=1):
        assert not state.compiles_in_workers()


def test_frozen_weights_become_constants_later(stages):
    compiled(gated, X, FIRST, SECOND, freezing=True)
    assert ("joint", "HorizontalJob") not in stages


def test_a_graph_that_may_be_cached_is_left_for_later(stages):
    with functorch_config.patch(enable_autograd_cache=False):
        compiled(gated, X, FIRST, SECOND, fx_graph_cache=True)
    assert stages == [("post-grad", "HorizontalJob")]


def test_what_is_never_timed_is_not_looked_up(stages, monkeypatch):
    monkeypatch.setattr(rules, "confirm_rejection", lambda query, policy: Rejected("its sizes are symbolic"))
    asked = []
    monkeypatch.setattr(deciding, "decide", lambda session, query: asked.append(query))
    graph = traced(gated, X, FIRST, SECOND)
    of = session()
    joint = JointPass(of, PostGradPass(of, DecomposedGemms(of)))
    assert list(joint._decided(graph.graph)) == asked == []


def test_kernels_that_were_not_ready_are_not_waited_for_again(stages, monkeypatch):
    monkeypatch.setattr(Compiled, "ready", lambda self, seconds: False)
    stats = compiled(gated, X, FIRST, SECOND)
    assert stages == [("joint", "HorizontalJob")]
    assert stats["errors"] == []


def test_what_is_compiled_is_timed_while_other_kernels_compile():
    def job(saved_us, ready):
        return SimpleNamespace(saved_us=saved_us, ready=lambda seconds: next(ready))

    slow, quick, late = job(9.0, iter([False] * 9)), job(1.0, iter([True])), job(2.0, iter([False, True]))
    assert list(confirming._as_ready([quick, slow, late])) == [quick, late, slow]


def test_a_failure_costs_the_head_start_alone(stages, monkeypatch):
    def broken(*_):
        raise ValueError("broken")

    monkeypatch.setattr(JointPass, "_decided", broken)
    stats = compiled(gated, X, FIRST, SECOND)
    assert stages == [("post-grad", "HorizontalJob")]
    assert stats["errors"] == ["joint pass: ValueError: broken"]


def test_what_was_begun_is_taken_over_once():
    def job():
        made = SimpleNamespace(key="code", begun=(), saved_us=1e9, policy=POLICY, times=0)

        def begin(carry_out):
            made.begun, made.times = (object(),), made.times + 1

        made.begin = begin
        return made

    step, (first, second, third) = Step(None), (job() for _ in range(3))
    step._limit = limits.TrialLimit(POLICY)
    step.jobs = [first]
    assert step._begin_job(first) is None
    step.keep()
    assert step._begin_job(second) is step._begin_job(third) is None
    assert second.begun == first.begun
    assert (first.times, second.times, third.times) == (1, 0, 1)
