"""Passes that others put into Inductor: kept, composed with ours, and part of the cache key."""

import torch
import torch._inductor.config as inductor_config
from torch._inductor import custom_graph_pass
from torch._inductor.custom_graph_pass import CustomGraphPass

from gemmdb.inductor import force
from gemmdb.inductor.decide.session import ForcedSession
from gemmdb.inductor.entry import install
from gemmdb.inductor.lower.adapter import slots

X, W = torch.randn(8, 64), torch.randn(64, 32)


class Count(CustomGraphPass):
    def __init__(self, name):
        self.name, self.graphs = name, 0

    def __call__(self, graph):
        self.graphs += 1

    def uuid(self):
        return self.name


def test_passes_that_the_user_set_are_kept(kit):
    both = ("joint_custom_pre_pass", "post_grad_custom_post_pass")
    before, after, given = ({slot: Count(name + slot) for slot in both} for name in ("before", "after", "given"))
    with inductor_config.patch(before), force(kit.left_alone):
        kit.compiled(torch.matmul, X, W)
    with force(kit.left_alone):
        with inductor_config.patch(after):
            kit.compiled(torch.matmul, X, W)
        kit.compiled(torch.matmul, X, W, options=given)
    for passes in (before, after, given):
        assert [each.graphs for each in passes.values()] == [1, 1]
    assert len(kit.problems()) == 3


def test_uuids_of_user_passes_are_folded_in():
    def ours(key):
        bodies = install.slots(ForcedSession(None, key))
        return slots.GraphPass(bodies["joint_custom_pre_pass"])

    mine = ours("key")
    assert "key" in mine.uuid()
    assert slots.Chain(Count("theirs"), mine).uuid() == ("theirs", mine.uuid())
    assert slots.Chain(lambda graph: None, mine).uuid() is None
    assert ours(None).uuid() is None


# Since torch 2.12; before, every pass is told nothing but the graph.
InferenceAware = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", None)


class Aware(InferenceAware or CustomGraphPass):
    told = None

    def __call__(self, graph, is_inference):
        self.told = is_inference

    def uuid(self):
        return "aware"


def test_one_pass_slots_of_older_releases_hold_both(kit, monkeypatch):
    monkeypatch.setattr(slots, "_takes_lists", lambda: False)
    counting, aware = Count("user"), Aware()
    users = [counting, aware] if InferenceAware else [counting]
    for user in users:
        with inductor_config.patch(post_grad_custom_post_pass=user), torch.no_grad(), force(kit.left_alone):
            kit.compiled(torch.matmul, X, W)
    assert (counting.graphs, aware.told) == (1, True if InferenceAware else None)
    assert len(kit.problems()) == len(users)
