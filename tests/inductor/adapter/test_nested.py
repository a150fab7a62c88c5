"""A small graph is compiled while another one is being compiled."""

import pytest
import torch
import torch._inductor.config as inductor_config
from torch._dynamo.utils import counters
from torch._inductor import metrics
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from gemmdb.inductor.adapter import nested


def small(function, *given):
    """The graph of `function` with fake values, and the fake inputs."""
    graph = make_fx(function, tracing_mode="fake")(*given)
    fakes = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    graph.graph.output_node().args = ((graph.graph.output_node().args[0],),)
    graph.recompile()
    return graph, fakes


def compute(a, b):
    return torch.mm(a, b).relu() * 2


class Inside(CustomGraphPass):
    """Compiles and runs a small graph in the middle of another compile."""

    def __init__(self, *given):
        self.given, self.found, self.code = given, [], []

    def __call__(self, graph):
        self.code.append(nested.generate(*small(compute, *self.given)))
        with FakeTensorMode():  # As where passes run: nothing is real.
            function = self.code[-1].begin().function()
            with nested.real_tensors():
                self.found.append(function(list(self.given))[0])

    def uuid(self):
        return None


def test_it_computes_what_it_says_and_the_outer_compile_does_not_notice():
    a, b = torch.randn(8, 16), torch.randn(16, 8)
    inside = Inside(a, b)

    def outer(a, b):
        return (a @ b).sin() @ a

    def compiled(**patches):
        torch._dynamo.reset()
        counters.clear()
        metrics.reset()
        with inductor_config.patch(fx_graph_cache=False, **patches):
            found = torch.compile(outer)(a, b)
        return found, dict(counters["inductor"]), metrics.generated_kernel_count

    plain, counted, kernels = compiled()
    found, counted_too, kernels_too = compiled(post_grad_custom_post_pass=inside)
    assert torch.equal(inside.found[0], torch.mm(a, b).relu() * 2)
    assert torch.equal(found, plain)
    assert (counted_too, kernels_too) == (counted, kernels)


def test_several_are_begun_before_the_first_is_waited_for():
    def adding(n):
        return lambda a, b: torch.mm(a, b).relu() + n

    a, b = torch.randn(4, 4), torch.randn(4, 4)
    graphs = [small(adding(n), a, b) for n in range(3)]
    begun = [nested.generate(*graph).begin() for graph in graphs]
    for n, one in enumerate(begun):
        (found,) = one.function()([a, b])
        torch.testing.assert_close(found, torch.mm(a, b).relu() + n)


def test_what_does_not_compile_raises_and_leaves_the_counters_alone():
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    graph, fakes = small(torch.mm, a, b)
    before = {**counters["inductor"]}
    with pytest.raises(Exception, match="positional argument"):
        nested.generate(graph, fakes[:1])
    assert {**counters["inductor"]} == before


def test_the_users_c_plus_plus_wrapper_is_not_used():
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    with inductor_config.patch({"cpp_wrapper": True, "triton.cudagraphs": True}):
        (found,) = nested.generate(*small(torch.mm, a, b)).begin().function()([a, b])
    torch.testing.assert_close(found, a @ b)


def test_counters_are_zeroed_before_the_first_call_alone():
    source = """
        workspace_gemmdb_0 = empty_strided_cuda((65600, ), (1, ), torch.int32)
        workspace_gemmdb_0.zero_()
        buf0 = empty_strided_cuda((8, 8), (8, 1), torch.float32)
        buf0.zero_()
"""
    assert (
        nested._zeroed_before(source)
        == """
        workspace_gemmdb_0 = _zeros((65600, ), (1, ), torch.int32)
        buf0 = empty_strided_cuda((8, 8), (8, 1), torch.float32)
        buf0.zero_()
"""
    )
