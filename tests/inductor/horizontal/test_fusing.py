"""A group becomes one kernel where a trial says that this is faster, and is left alone everywhere else."""

from dataclasses import replace

import pytest
import torch
from kit.horizontal import NARROW, POLICY, decided, half, session, traced

from gemmdb.inductor import ops
from gemmdb.inductor.confirm import cutting, rules
from gemmdb.inductor.confirm.job import Unconfirmed
from gemmdb.inductor.horizontal import fusing
from gemmdb.inductor.horizontal.trial import Timed, Trial
from gemmdb.inductor.journal import JOURNAL

linear = torch.nn.functional.linear


def layers(x, *weights):
    """Two layers with the same sizes, of two products each."""
    for place in range(0, len(weights), 2):
        first, second = (linear(x, one) for one in weights[place : place + 2])
        x = first.relu() * second / 64
    return x.cumsum(0)


@pytest.fixture
def seen(monkeypatch):
    """The trials that were begun. Each says what `seen.answer` says."""
    found = []

    class Trials(list):
        answer: object = Timed(10.0, 15.0)

    trials = Trials(found)

    def finish(trial):
        if isinstance(trials.answer, Exception):
            raise trials.answer
        return trials.answer

    monkeypatch.setattr(Trial, "begin", lambda trial, steer: trials.append(trial))
    monkeypatch.setattr(Trial, "finish", finish)
    monkeypatch.setattr(rules, "hindrance", lambda device: "")
    monkeypatch.setattr(fusing, "_KNOWN", {})
    JOURNAL.drop()
    yield trials
    JOURNAL.drop()


def fused(of=None, us=10.0, count=4):
    """(the graph, how many nodes are gone) after fusing two layers."""
    graph = traced(layers, half(8, 64), *(half(64, 64) for _ in range(count)))
    pairs = decided(graph, of, us)
    for _, decision in pairs:
        JOURNAL.enter(decision.event, decision.entry)
    gone = fusing.fuse(pairs, lambda node, decision: None)
    graph.graph.lint()
    return [node.target for node in graph.graph.nodes].count(ops.register_horizontal()), len(gone)


def test_layers_with_the_same_code_are_tried_once(seen):
    assert fused() == (2, 4)
    (trial,) = seen
    assert len(trial.groups) == 2
    for event in JOURNAL.pending():
        assert (event.config, event.rung) == (NARROW.text, "near")
        assert event.expected_us == pytest.approx(10.0 / 1.5)
        assert event.speedup == pytest.approx(1.5)
        assert event.evidence["horizontal"] == {"products": 2, "us": 10.0, "apart_us": 15.0}
        assert event.note == "one kernel for 2 products"


def test_the_next_graph_with_these_layers_is_not_tried_again(seen):
    assert fused() == (2, 4)
    seen.answer = Timed(15.0, 10.0)
    assert fused(count=2) == (1, 2)
    assert len(seen) == 1


def test_a_group_that_cannot_be_cut_out_is_left_alone(seen, monkeypatch):
    def uncut(*_):
        raise cutting.Uncut("something lies between them")

    monkeypatch.setattr(cutting, "cut_all", uncut)
    errors = len(JOURNAL.errors)
    assert fused() == (0, 0)
    assert len(JOURNAL.errors) == errors


@pytest.mark.parametrize(
    "answer",
    [Timed(15.0, 15.1), Timed(16.0, 15.0), Unconfirmed("its times vary"), RuntimeError("the compiler crashed")],
    ids=["no gain", "slower", "noise", "crash"],
)
def test_nothing_changes_without_a_gain(seen, answer):
    seen.answer = answer
    assert fused() == (0, 0)
    assert all(event.config == "aten:default" for event in JOURNAL.pending())


def test_what_is_not_expected_to_gain_is_not_tried(seen):
    assert fused(session(us=20.0)) == (0, 0)
    assert seen == []
    # Products of whose time nothing is known count for little.
    assert fused(session(us=7.0), us=None) == (0, 0)
    assert fused(session(us=2.0), us=None) == (2, 4)


@pytest.mark.parametrize("changes", [{"horizontal": False}, {"confirm": False}], ids=["horizontal", "confirm"])
def test_the_policy_switches_it_off(seen, changes):
    assert fused(session(policy=replace(POLICY, **changes))) == (0, 0)
    assert seen == []


def test_nothing_begins_after_half_of_the_time(seen, monkeypatch):
    times = iter([0.0, *[1.6] * 99])
    monkeypatch.setattr(fusing, "now", lambda: next(times))
    assert fused() == (0, 0)
    assert seen == []


def test_nothing_is_timed_while_a_graph_is_captured(seen, monkeypatch):
    monkeypatch.setattr(rules, "hindrance", lambda device: "a CUDA graph is being captured")
    assert fused() == (0, 0)


def test_a_failure_never_reaches_the_compile(seen, monkeypatch):
    def broken(*_):
        raise ValueError("broken")

    monkeypatch.setattr(fusing.groups, "find", broken)
    assert fused() == (0, 0)
    assert any("horizontal fusion" in error for error in JOURNAL.errors)
    JOURNAL.errors.clear()


def test_a_compile_with_a_kernel_that_cannot_be_generated_goes_on(seen, kit, monkeypatch):
    """On a CPU there is no Triton kernel, so the lowering takes the products one by one."""
    from gemmdb.inductor import session as sessions
    from gemmdb.inductor.horizontal import groups

    monkeypatch.setattr(groups, "_GPUS", ("cpu", "cuda"))
    monkeypatch.setattr(rules, "objection", lambda query, policy: "")
    torch._dynamo.reset()
    tensors = [half(8, 64), *(half(64, 64) for _ in range(4))]
    import gemmdb.inductor

    gemmdb.inductor.enable()
    gemmdb.inductor.reset_stats()
    answering = replace(session(us=0.1), identity=None)
    with sessions.use(answering), torch.no_grad():
        found = torch.compile(layers)(*tensors)
    torch.testing.assert_close(found, layers(*tensors), rtol=0.05, atol=0.1)
    stats = gemmdb.inductor.stats()
    gemmdb.inductor.disable()
    assert len(seen) == 1
    assert all("not in one kernel" in product["note"] for product in stats["products"])
