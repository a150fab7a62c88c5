"""Padded GEMMs: right, with Inductor's own means, and no benchmark of Inductor's where a table answers."""

import pytest
import torch
from kit import gpu
from kit.devices import H200
from kit.lab import CPU as CPU_DEVICE
from kit.sessions import FakeSession
from torch._inductor import config as inductor_config
from torch._inductor.fx_passes import pad_mm
from torch._inductor.pattern_matcher import CallFunction, Match, MatchContext
from torch.fx.experimental.proxy_tensor import make_fx

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.generators.measure.correctness import reference
from gemmdb.generators.measure.operands import operands
from gemmdb.generators.measure.program import Product
from gemmdb.generators.measure.tolerance import tolerance
from gemmdb.hit import Hit
from gemmdb.inductor.benchmark import tune as live
from gemmdb.inductor.decide import legality
from gemmdb.inductor.entry import active, enable
from gemmdb.inductor.lower import padding
from gemmdb.inductor.lower.adapter import hooks
from gemmdb.inductor.match import extract
from gemmdb.kernels.config import ATEN
from gemmdb.lookup.evidence import BESIDE_PADDING
from gemmdb.settings import Policy

CPU = torch.device("cpu")
gemm = Problem.gemm
PADDED = Config.of("aten", "padded", multiple=8)
VIEW = Config.of("aten", "padded", multiple=8, output="view")
TILE = gpu.make("tile")


@pytest.fixture
def anywhere(monkeypatch):
    """The rules say that padding is for GPUs; Inductor can carry it out here as well."""
    monkeypatch.setattr(legality, "rejection", lambda config, query, rows=None: None)


@pytest.mark.parametrize(
    "problem",
    [
        gemm("mm", m=5, n=11, k=13, dtype="fp32"),
        gemm("mm", m=5, n=11, k=13, dtype="fp32", layout="tn"),
        gemm("addmm", m=5, n=16, k=13, dtype="fp32"),
        gemm("addmm", m=5, n=11, k=16, dtype="fp32", bias="full", fusion="pointwise"),
    ],
    ids=lambda problem: problem.text,
)
def test_the_gemm_is_right_and_dense(problem, anywhere):
    made = operands(problem, CPU, 1)
    product = Product(problem, made)
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    with gemmdb.inductor.force(PADDED), inductor_config.patch(fx_graph_cache=False):
        found = torch.compile(product)(*product.inputs)
    assert [entry["config"] for entry in gemmdb.inductor.stats()["products"]] == [PADDED.text]
    assert gemmdb.inductor.stats()["errors"] == []
    assert found.is_contiguous()
    assert reference(problem, made).error(found) <= tolerance(problem)


@pytest.mark.parametrize("rest", [{}, {"bias": "1d"}, {"bias": "full"}, {"bias": "column"}], ids=str)
@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_the_view_is_right(rest, layout, anywhere):
    problem = gemm("addmm" if rest else "mm", m=5, n=11, k=13, dtype="fp32", layout=layout, **rest)
    made = operands(problem, CPU, 1)
    product = Product(problem, made)
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    with gemmdb.inductor.force(VIEW), inductor_config.patch(fx_graph_cache=False):
        found = torch.compile(product)(*product.inputs)
    assert [entry["config"] for entry in gemmdb.inductor.stats()["products"]] == [VIEW.text]
    assert gemmdb.inductor.stats()["errors"] == []
    assert found.stride() == (16, 1)
    assert reference(problem, made).error(found) <= tolerance(problem)


STRIDED = {
    "the output": lambda x, w: torch.mm(x, w),
    "a view of it": lambda x, w: torch.mm(x, w).view(1, 5, 11),
    "a part of it": lambda x, w: torch.mm(x, w)[1:],
    "its memory": lambda x, w: torch.as_strided(torch.mm(x, w), (55,), (1,)) + 1,
}


@pytest.mark.parametrize("program", STRIDED.values(), ids=STRIDED)
@pytest.mark.parametrize("dense", [PADDED, None], ids=str)
def test_the_program_gets_dense_rows(program, dense, anywhere):
    """As without padding. The next best config serves them, else ATen."""
    x, w = torch.randn(5, 13), torch.randn(13, 11)

    def exact(config):
        return lambda query: config and Hit("exact", config, 1.0, 1.0, "")

    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    enable.install()
    with active.use(FakeSession(exact(VIEW), dense=exact(dense))), inductor_config.patch(fx_graph_cache=False):
        found = torch.compile(program)(x, w)
    torch.testing.assert_close(found, program(x, w))
    assert found.is_contiguous()
    (product,) = gemmdb.inductor.stats()["products"]
    assert product["config"] == (dense or ATEN).text
    assert gemmdb.inductor.stats()["errors"] == []


def test_inside_of_a_graph_rows_stay_padded(anywhere):
    x, w = torch.randn(5, 13), torch.randn(13, 11)
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    enable.install()
    with active.use(answering("exact", VIEW)), inductor_config.patch(fx_graph_cache=False):
        found = torch.compile(lambda x, w: torch.mm(x, w).softmax(1))(x, w)
    torch.testing.assert_close(found, torch.mm(x, w).softmax(1))
    (product,) = gemmdb.inductor.stats()["products"]
    assert product["config"] == VIEW.text


@pytest.mark.parametrize("config", [PADDED, VIEW], ids=str)
def test_alpha_and_beta(config, anywhere):
    bias, a, b = torch.randn(11), torch.randn(5, 13), torch.randn(13, 11)
    torch._dynamo.reset()
    with gemmdb.inductor.force(config), inductor_config.patch(fx_graph_cache=False):
        found = torch.compile(lambda: torch.addmm(bias, a, b, alpha=2.0, beta=0.5))()
    torch.testing.assert_close(found, torch.addmm(bias, a, b, alpha=2.0, beta=0.5))


def node(function, *shapes, dtype="float32"):
    made = [torch.randn(shape, dtype=getattr(torch, dtype)) for shape in shapes]
    graph = make_fx(function, tracing_mode="fake")(*made).graph
    return next(node for node in graph.nodes if "mm" in str(node.target))


def matched(product):
    """What Inductor's pattern matcher finds if its pattern is that one node."""
    pattern = CallFunction(product.target)
    return Match(MatchContext([pattern], {pattern: product}, graph=product.graph), pattern)


@pytest.fixture
def asked(monkeypatch):
    """What Inductor's own decision was asked for, in place of its benchmark, which needs a GPU."""
    seen = []
    wrapper = hooks.unless_padding_is_answered(
        lambda match, *rest: seen.append(match) or True, lambda node: padding.answered(active.current(), node)
    )
    monkeypatch.setattr(pad_mm, "_should_pad", wrapper)
    return seen


def test_what_is_answered_is_not_padded_with_a_benchmark(asked):
    match = matched(node(torch.mm, (33, 77), (77, 99)))
    for config in (PADDED, ATEN):
        with gemmdb.inductor.force(config):
            assert pad_mm._should_pad(match) is False
    assert asked == []
    with gemmdb.inductor.force(lambda problem: None):
        assert pad_mm._should_pad(match) is True
    assert pad_mm._should_pad(match) is True, "nothing is in force"
    assert asked == [match] * 2
    with gemmdb.inductor.force(PADDED), inductor_config.patch(force_shape_pad=True):
        assert pad_mm._should_pad(match) is True, "the user asked for it"


@pytest.mark.parametrize(("dtype", "device", "padded"), [("bfloat16", H200, False), ("float32", H200, True),
                                                          ("bfloat16", CPU_DEVICE, True)])  # fmt: skip
def test_batch_invariance_rules_out_padding_only_where_it_covers_a_gemm(asked, monkeypatch, dtype, device, padded):
    monkeypatch.setattr(extract, "device", lambda of: device)
    match = matched(node(inner, (33, 77), (77, 99), dtype=dtype))
    with active.use(FakeSession(lambda query: None, Policy(batch_invariant=True, on_miss="aten"), None)):
        assert pad_mm._should_pad(match) is padded


@pytest.mark.parametrize(
    ("declines", "hindered", "padded"),
    [("", "", False), ("its sizes are symbolic", "", True), ("", "20 s were not enough before", True)],
)
def test_what_will_be_tuned_live_is_not_padded_with_a_benchmark(asked, monkeypatch, declines, hindered, padded):
    monkeypatch.setattr(live, "_late", hindered)
    match = matched(node(inner, (33, 77), (77, 99)))
    tuning = FakeSession(lambda query: None, Policy(on_miss="live"), None, declines=declines)
    with active.use(tuning):
        assert pad_mm._should_pad(match) is padded
    assert asked == [match] * padded


def inner(a, b):
    """A GEMM whose output the program does not get."""
    return torch.mm(a, b).sum(0)


def answering(rung, config, measured=False):
    """A session with one answer. `measured`: whether Inductor's own padding was measured too."""
    evidence = {BESIDE_PADDING: measured}
    return FakeSession(lambda query: Hit(rung, config, 1.0, 1.0, "", evidence), Policy(), None)


@pytest.mark.parametrize("rung", ["exact", "near", "epilogue"])
@pytest.mark.parametrize("config", [ATEN, PADDED, TILE, VIEW], ids=str)
def test_only_what_won_beside_inductors_own_padding_rules_it_out(asked, rung, config):
    """3000 x 4097 x 4095 took 178.9 us on copied rows where default mode took 167.8: the verdict compared it with ATen
    without padding. A kernel that was not measured is confirmed beside that, too."""
    match = matched(node(inner, (33, 77), (77, 99)))
    for measured in (False, True):
        with active.use(answering(rung, config, measured)):
            assert pad_mm._should_pad(match) is not (rung == "exact" and measured)


@pytest.mark.parametrize("program", [torch.mm, lambda a, b: torch.mm(a, b).view(3, 11, 99)])
def test_what_the_program_gets_is_padded_by_inductor_alone(asked, monkeypatch, program):
    """Its rows would be copied, unless Inductor pads them."""
    monkeypatch.setattr(live, "_late", "")
    match = matched(node(program, (33, 77), (77, 99)))
    for config, padded in ((VIEW, True), (TILE, False), (ATEN, False), (PADDED, False)):
        with active.use(answering("exact", config, True)):
            assert pad_mm._should_pad(match) is padded
    with active.use(FakeSession(lambda query: None, Policy(on_miss="live"), None)):
        assert pad_mm._should_pad(match) is True, "live tuning finds padded rows without a copy no faster than a copy"


@pytest.mark.parametrize(("rung", "config", "padded"), [("exact", ATEN, False), ("near", ATEN, True)])
def test_a_shallow_k_is_left_as_it_is(asked, rung, config, padded):
    """Inductor takes it for bound by memory, whatever the GPU."""
    match = matched(node(torch.mm, (512, 13), (13, 512), dtype="bfloat16"))
    with active.use(answering(rung, config)):
        assert pad_mm._should_pad(match) is padded


@pytest.mark.parametrize(("rung", "config", "padded"), [("near", ATEN, True), ("near", TILE, False)])
def test_rows_that_are_aligned_stay_as_many_as_they_are_where_a_kernel_is_expected_to_win(asked, rung, config, padded):
    """Inductor padded four rows to eight where its timings were disturbed. GEMMs of one activation then had no
    common kernel."""
    match = matched(node(torch.mm, (4, 96), (96, 128)))
    with active.use(FakeSession(lambda query: Hit(rung, config, 1.0, 1.0, ""), Policy(), None)):
        assert pad_mm._should_pad(match) is padded


@pytest.mark.parametrize(("elementwise", "dtype", "forms", "padded"), [
    (True, "float32", ["mm"], False), (False, "float32", ["mm"], True), (False, "float32", ["mm", "addmm"], True),
    (True, "bfloat16", ["mm"], True), (True, "bfloat16", ["addmm"], False),
])  # fmt: skip
def test_an_addmm_is_answered_by_what_will_be_left_of_it(asked, elementwise, dtype, forms, padded):
    """Inductor takes a bias out only if it is fp32 and elementwise work follows. Otherwise the addmm has no answer and
    stays, and ATen without padding took 2.6 times as long for the logits of a BERT (N = 30522)."""

    def layer(bias, a, b):
        product = torch.addmm(bias, a, b)
        return product.relu() if elementwise else product

    def with_epilogue(problem):
        return PADDED if problem.op in forms and problem.fusion == "pointwise" else None

    match = matched(node(layer, (99,), (33, 77), (77, 99), dtype=dtype))
    with gemmdb.inductor.force(with_epilogue):
        assert pad_mm._should_pad(match) is padded
    assert len(asked) == padded
