"""What shares memory with the output of a choice, for Inductor's scheduler: the places, in whatever loops."""

import pytest

torch = pytest.importorskip("torch")

import sympy
from kit.inductor_ir import Scheduler, SchedulerNode, Template
from torch._inductor import ir, scheduler
from torch._inductor.dependencies import MemoryDep, StarDep
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V

import gemmdb.inductor
from gemmdb.inductor.lower.adapter import codegen

A, B, C = sympy.symbols("c0 c1 c2", integer=True, nonnegative=True)
ROWS = MemoryDep("out", 256 * A + B, (A, B), (24, 256))
BATCHED = MemoryDep("out", 3072 * A + 256 * B + C, (A, B, C), (2, 12, 256))
TURNED = MemoryDep("out", 3072 * A + B + 256 * C, (A, B, C), (2, 256, 12))
OTHER = MemoryDep("residual", 3072 * A + 256 * B + C, (A, B, C), (2, 12, 256))


@pytest.fixture(autouse=True)
def graph():
    """What Inductor asks for the sizes of loops."""
    with V.set_graph_handler(GraphLowering(torch.fx.symbolic_trace(lambda x: x))):
        yield


node = SchedulerNode.of


def boxed(template):
    """The output of a template as a lowering returns it."""
    return ir.TensorBox(ir.StorageBox(template))


def test_the_same_places_in_other_loops_are_shared():
    product = node(writes=[ROWS])
    assert codegen.shared(product, node(reads=[BATCHED, OTHER])) == {BATCHED.normalize()}
    assert codegen.shared(product, node(reads=[ROWS, OTHER])) == {ROWS.normalize()}
    assert codegen.shared(product, node(reads=[TURNED, OTHER])) == set()
    assert codegen.shared(product, node(reads=[OTHER, StarDep("out")])) == set()


@pytest.fixture
def score(monkeypatch):
    """Inductor's score, as that of torch 2.11 is, with what gemmdb puts around it."""

    def exact(self, node1, node2, both=False):
        first, second = ({*one.read_writes.reads, *one.read_writes.writes} for one in (node1, node2))
        found = sum(self.dep_size_hint(dep) for dep in first & second)
        return (found, False) if both else found

    monkeypatch.setattr(scheduler.Scheduler, "score_fusion_memory", codegen.scoring_any_loops(exact))
    return lambda *args, **options: scheduler.Scheduler.score_fusion_memory(Scheduler(2), *args, **options)


def test_only_our_choices_are_seen_through(score):
    template = Template()
    box = boxed(template)
    consumer = node(reads=[BATCHED, OTHER])
    assert score(node(writes=[ROWS], template=template), consumer) == 0
    assert codegen.fusible(box) is box
    product = node(writes=[ROWS], template=template)
    assert score(product, consumer) == score(consumer, product) == 2 * 24 * 256
    assert score(product, consumer, both=True) == (2 * 24 * 256, False)
    assert score(product, node(reads=[TURNED])) == 0
    assert score(node(writes=[ROWS]), consumer) == 0


def test_what_inductor_finds_by_itself_is_left(score):
    template = Template()
    codegen.fusible(boxed(template))
    product = node(writes=[ROWS], template=template)
    assert score(product, node(reads=[ROWS, BATCHED])) == 2 * 24 * 256


def test_inductor_is_wrapped_when_the_first_graph_is_compiled(kit):
    gemmdb.inductor.enable()
    kit.compiled(lambda a, b: a @ b, torch.ones(4, 8), torch.ones(8, 4))
    assert getattr(scheduler.Scheduler.score_fusion_memory, "_gemmdb", False)


BEHIND = {
    "transposed": (lambda y: y.relu().t().contiguous(), True),
    "by heads": (lambda y: (y.view(24, 4, 64) * 2).transpose(0, 1).contiguous(), True),
    "by heads of sequences": (lambda y: (y.view(2, 12, 4, 64) * 2).transpose(1, 2).contiguous(), True),
    "its own order": (lambda y: y.relu(), False),
    "a part": (lambda y: y[:, :128].t().contiguous() * 2, False),
    "twice": (lambda y: (y[:, :24] + y[:, :24].t()).contiguous(), False),
    "expanded": (lambda y: y.t()[:, None].expand(256, 3, 24) * 2, False),
    "reduced": (lambda y: y.relu().t().sum(1), False),
}
"""What follows a GEMM [24, 256], and whether its loops can be turned into the GEMM's."""


@pytest.mark.parametrize("name", BEHIND)
def test_loops_are_turned_into_the_order_in_which_the_gemm_is_stored(name, kit, monkeypatch):
    """A sum stands for the GEMM: it is computed in loops of its own, too, and the scheduler of a CPU knows them."""
    after, turns = BEHIND[name]
    seen = []

    def turned(self, nodes):
        product, consumer = nodes[0], nodes[-1]
        before = consumer.get_ranges()
        codegen.turn(product, consumer)
        stored = {dep.normalize() for dep in product.read_writes.writes}
        read = {dep.normalize() for dep in consumer.read_writes.reads if dep.name in product.get_buffer_names()}
        seen.append((consumer.get_ranges() != before, read == stored))
        raise RuntimeError("the code generator of a CPU turns no loops")

    monkeypatch.setattr(scheduler.Scheduler, "fuse_nodes", turned)
    with pytest.raises(RuntimeError, match="turns no loops"):
        kit.compiled(lambda x: after(x.sum(0)), torch.randn(8, 24, 256))
    assert seen == [(turns, turns or name == "its own order")]
