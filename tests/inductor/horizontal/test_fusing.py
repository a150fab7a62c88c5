"""A group becomes one kernel where a trial says that this is faster, and is left alone everywhere else."""

from dataclasses import replace

import pytest
import torch
import torch._inductor.config as inductor_config
from kit.horizontal import NARROW, POLICY, decided, half, session, traced

from gemmdb.inductor.benchmark import horizontal as fusing
from gemmdb.inductor.benchmark import limits, rules
from gemmdb.inductor.benchmark import subgraph as cutting
from gemmdb.inductor.benchmark.horizontal import HorizontalJob, Timed
from gemmdb.inductor.benchmark.trial import Untimed
from gemmdb.inductor.match import ops
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels.config import ATEN
from gemmdb.rejected import Rejected

linear = torch.nn.functional.linear


def layers(x, *weights):
    """Two layers with the same sizes, of two GEMMs each."""
    for place in range(0, len(weights), 2):
        first, second = (linear(x, one) for one in weights[place : place + 2])
        x = first.relu() * second / 64
    return x.cumsum(0)


@pytest.fixture
def seen(monkeypatch):
    """The trials that were begun. Each says what `seen.answer` says."""

    class Jobs(list):
        answer: object = Timed(10.0, 15.0)

    jobs = Jobs()

    def finish(job):
        if isinstance(jobs.answer, Exception):
            raise jobs.answer
        return jobs.answer

    monkeypatch.setattr(HorizontalJob, "begin", lambda job, carry_out: jobs.append(job))
    monkeypatch.setattr(HorizontalJob, "finish", finish)
    monkeypatch.setattr(rules, "device_rejection", lambda device: None)
    monkeypatch.setattr(fusing, "_KNOWN", {})
    JOURNAL.drop()
    yield jobs
    JOURNAL.drop()


def doubted(decision, us):
    """The decision with a kernel that a neighbour says is twice as fast as ATen."""
    event = replace(decision.event, rung="near", config=NARROW.text, expected_us=us, speedup=2.0)
    return replace(decision, config=NARROW, event=event)


def graph_of(of=None, us=10.0, count=2):
    """(a graph of layers with `count` GEMMs, these with their decisions), as the journal knows them."""
    graph = traced(layers, half(8, 64), *(half(64, 64) for _ in range(count)))
    return graph, decided(graph, of, us)


def fusion():
    return fusing.Fusion(lambda node, decision: None)


def fused(of=None, us=10.0, count=4, change=lambda decision: decision):
    """(how many kernels there are, how many nodes are gone) after fusing layers of two GEMMs each."""
    graph, pairs = graph_of(of, us, count)
    pairs = [(node, change(decision)) for node, decision in pairs]
    for _, decision in pairs:
        JOURNAL.enter(decision.event, decision.entry)
    gone = fusion().fuse(pairs)
    graph.graph.lint()
    return [node.target for node in graph.graph.nodes].count(ops.overload("horizontal_mm")), len(gone)


def test_layers_with_the_same_code_are_tried_once(seen):
    assert fused() == (2, 4)
    (job,) = seen
    assert len(job.groups) == 2
    for event in JOURNAL.pending():
        assert (event.config, event.rung) == (NARROW.text, "near")
        assert event.expected_us == pytest.approx(10.0 / 1.5)
        assert event.speedup == pytest.approx(1.5)
        assert event.evidence["horizontal"] == {
            "products": 2, "us": 10.0, "apart_us": 15.0, "instead_of": "aten:default",
        }  # fmt: skip
        assert event.note == "one kernel for 2 GEMMs"


def test_an_answer_in_doubt_counts_as_aten(seen):
    assert fused(count=2, change=lambda one: doubted(one, us=6.0)) == (1, 2)
    (job,) = seen
    assert job.apart == (ATEN, ATEN)
    for event in JOURNAL.pending():
        # Twelve microseconds were expected of ATen, and the trial says that one kernel is 1.5 times as fast.
        assert (event.config, event.expected_us, event.speedup) == (NARROW.text, pytest.approx(8.0), 1.5)
        assert event.evidence["horizontal"]["instead_of"] == ATEN.text


def test_a_confirmed_answer_stays_what_one_kernel_is_compared_with(seen):
    def confirmed(one):
        one = doubted(one, us=6.0)
        return replace(one, event=replace(one.event, evidence={"confirmed": {}}))

    fused(count=2, change=confirmed)
    (job,) = seen
    assert job.apart == (NARROW, NARROW)


def test_what_is_slower_than_aten_is_not_tried_again_once_the_answers_are_confirmed(seen):
    seen.answer = Timed(15.0, 10.0)
    (_, pairs), step = graph_of(), fusion()
    assert step.fuse([(node, doubted(one, us=6.0)) for node, one in pairs]) == set()
    fusing._KNOWN.clear()
    assert step.fuse(pairs) == set()
    assert len(seen) == 1


def test_what_had_no_time_is_tried_the_second_time(seen, monkeypatch):
    (_, pairs), step = graph_of(), fusion()
    times = iter([0.0, 0.0, *[1.6] * 9])
    monkeypatch.setattr(limits, "now", lambda: next(times))
    assert step.fuse(pairs) == set()
    assert seen == [], "nothing begins after half of the time"
    monkeypatch.setattr(limits, "now", lambda: 0.0)
    assert len(step.fuse(pairs)) == 2


def test_what_was_not_promising_is_tried_once_the_answers_are_slower_than_expected(seen):
    (_, pairs), step = graph_of(), fusion()
    assert step.fuse([(node, doubted(one, us=2.0)) for node, one in pairs]) == set()
    assert seen == []
    assert len(step.fuse(pairs)) == 2


def test_gemms_of_other_layers_stay_far_apart_once_others_are_gone(seen):
    def far(x, *weights):
        found = [linear(x, one).sin() for one in weights[:1]]
        for one in weights[1:-1]:
            found.append(linear(found[-1], one).sin())
        return [*found, linear(x, weights[-1]).cos()]

    pairs, step = decided(traced(far, half(8, 64), *(half(64, 64) for _ in range(6)))), fusion()
    assert step.fuse(pairs) == set()
    assert step.fuse([pairs[0], pairs[-1]]) == set()
    assert seen == []


def test_a_group_may_read_a_gemm_of_another_group(seen):
    def low_rank(x, q, down, k, v):
        latent = linear(x, down)
        return linear(x, q).sin(), linear(latent, k) * 2, linear(latent, v).relu()

    given = [half(8, 64), *(half(64, 64) / 8 for _ in range(4))]
    graph = traced(low_rank, *given)
    assert len(fusion().fuse(decided(graph))) == 4
    graph.recompile()
    for one, wanted in zip(graph(*given), low_rank(*given), strict=True):
        torch.testing.assert_close(one, wanted, rtol=0.05, atol=0.15)


def test_the_next_graph_with_these_layers_is_not_tried_again(seen):
    assert fused() == (2, 4)
    seen.answer = Timed(15.0, 10.0)
    assert fused(count=2) == (1, 2)
    assert len(seen) == 1


def test_layers_alike_are_looked_up_once(seen):
    asked = []

    def kernel(query, allowed):
        asked.append(query.problem.head)
        return session().best_kernel(query, allowed)

    assert fused(session().variant(best_kernel=kernel)) == (2, 4)
    assert asked == ["mm m=8 n=128 k=64"]


def test_a_group_that_cannot_be_cut_out_is_left_alone(seen, monkeypatch):
    def uncut(*_):
        raise Untimed("something lies between them")

    monkeypatch.setattr(cutting, "cut_all", uncut)
    errors = len(JOURNAL.errors)
    assert fused() == (0, 0)
    assert len(JOURNAL.errors) == errors


def test_gemms_without_an_expected_time_share_that_of_the_trial(seen):
    assert fused(session(us=2.0), us=None) == (2, 4)
    for event in JOURNAL.pending():
        assert (event.expected_us, event.speedup) == (5.0, 1.5)


def test_a_trial_that_failed_is_not_repeated(seen):
    seen.answer = Untimed("its times vary")
    assert fused() == fused() == (0, 0)
    assert len(seen) == 1


def test_what_the_user_asked_inductor_to_search_is_searched(seen):
    with inductor_config.patch(max_autotune=True):
        assert fused() == (2, 4)  # These are answers.
        assert fused(change=lambda one: replace(one, event=replace(one.event, rung="aten"))) == (0, 0)


@pytest.mark.parametrize(
    "answer",
    [Timed(15.0, 15.1), Timed(16.0, 15.0), Untimed("its times vary"), RuntimeError("the compiler crashed")],
    ids=["no gain", "slower", "noise", "crash"],
)
def test_nothing_changes_without_a_gain(seen, answer):
    seen.answer = answer
    assert fused() == (0, 0)
    assert all(event.config == "aten:default" for event in JOURNAL.pending())


def test_what_is_not_expected_to_gain_is_not_tried(seen):
    assert fused(session(us=20.0)) == (0, 0)
    assert seen == []
    # GEMMs of whose time nothing is known count for little.
    assert fused(session(us=7.0), us=None) == (0, 0)
    assert fused(session(us=2.0), us=None) == (2, 4)


@pytest.mark.parametrize("changes", [{"horizontal": False}, {"confirm": False}], ids=["horizontal", "confirm"])
def test_the_policy_switches_it_off(seen, changes):
    assert fused(session(policy=replace(POLICY, **changes))) == (0, 0)
    assert seen == []


class Slow:
    """Code that is never ready. `waited`: the seconds that it was waited for, each time."""

    def __init__(self):
        self.waited = []

    def ready(self, seconds):
        self.waited.append(seconds)
        return False


def test_kernels_that_compile_for_longer_than_they_repay_are_not_waited_for(seen, monkeypatch):
    slow = Slow()
    monkeypatch.setattr(HorizontalJob, "begin", lambda job, carry_out: setattr(job, "begun", (slow,)))
    policy = replace(POLICY, live_calls=10_000)
    assert fused(session(us=5.0, policy=policy)) == (0, 0)
    # Two groups of two GEMMs of 10 us each, which one kernel of 5 us could replace.
    assert slow.waited == [pytest.approx(30e-6 * 10_000, abs=0.1)]


def test_nothing_is_timed_while_a_graph_is_captured(seen, monkeypatch):
    monkeypatch.setattr(rules, "device_rejection", lambda device: Rejected("a CUDA graph is being captured"))
    assert fused() == (0, 0)


def raising(*_):
    raise ValueError("broken")


@pytest.mark.parametrize("where", ["lookup", "groups"])
def test_a_failure_never_reaches_the_compile(seen, monkeypatch, where):
    of = session().variant(best_kernel=raising) if where == "lookup" else None
    if where == "groups":
        monkeypatch.setattr(fusing.groups, "find", raising)
    assert fused(of) == (0, 0)
    assert any("horizontal fusion" in error and "broken" in error for error in JOURNAL.errors)
    JOURNAL.errors.clear()
