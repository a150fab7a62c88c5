"""A kernel that was lowered and that a compiler then refuses: the compile goes on with ATen."""

import importlib.util
import os
import shlex

import pytest
import torch
import torch._inductor.config as inductor_config
from torch import nn

import gemmdb.inductor
from gemmdb import Policy, Problem
from gemmdb.inductor import force
from gemmdb.inductor.decide import legality, uncompiled
from gemmdb.inductor.lower.decomposed import DecomposedGemms
from gemmdb.inductor.observe.journal import JOURNAL, Event
from gemmdb.key.problem import Query

pytestmark = pytest.mark.slow
X = torch.randn(8, 64)
REFUSING = """#!/bin/sh
for word in "$@"; do
    [ -f "$word" ] && grep -q micro_gemm "$word" && echo "refused, as was asked" >&2 && exit 1
done
exec {} "$@"
"""
"""A C++ compiler that refuses the code of Inductor's C++ template."""


@pytest.fixture(scope="session")
def refusing(tmp_path_factory):
    """That compiler, at one path for all workers of the tests: a compiler has precompiled headers of its own."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    path = tmp_path_factory.mktemp("compiler") / "refusing"
    path.write_text(REFUSING.format(shlex.quote(get_cpp_compiler())))
    path.chmod(0o755)
    return path.replace(shared / "refusing")


@pytest.fixture
def no_micro_gemm(refusing):
    """Inside, no kernel of the C++ template can be compiled."""
    with inductor_config.patch({"cpp.cxx": (str(refusing),), "freezing": True}), torch.no_grad():
        yield
    uncompiled.clear()


def linear():
    """A model that no other test has in its caches."""
    return nn.Sequential(nn.Linear(64, 48 + int.from_bytes(os.urandom(1)), bias=False), nn.ReLU()).eval()


class Branching(nn.Module):
    """A GEMM before a branch, and one in each way that it may go."""

    def __init__(self):
        super().__init__()
        self.before = linear()
        width = self.before[0].out_features
        self.yes, self.no = (nn.Linear(width, 40, bias=False) for _ in range(2))

    def forward(self, x):
        h = self.before(x)
        return torch.cond(x.sum() > 0, lambda h: self.yes(h).relu(), lambda h: self.no(h) * 2, (h,))


def served(kit, table, model):
    """Compile with a table in which the C++ template wins the model's GEMMs; their problems, one for each."""
    texts = kit.problems(kit.forced(None, model, X))
    gemmdb.inductor.reset_stats()
    winners = dict.fromkeys(texts, kit.CPP)
    gemmdb.inductor.enable(on_miss="aten", tables=[table(winners)], policy=Policy(confirm=False))
    kit.checked(model, X)
    return texts


def test_the_compile_goes_on_with_aten_and_the_next_graph_does_not_try_again(kit, table, no_micro_gemm):
    model = linear()
    (text,) = served(kit, table, model)
    entry = kit.only()
    assert (entry["config"], entry["rung"], entry["count"]) == ("aten:default", "exact", 1)
    assert "could not be compiled" in entry["note"]
    (error,) = gemmdb.inductor.stats()["errors"]
    assert kit.CPP.text in error
    why = legality.rejection(kit.CPP, Query(Problem.parse(text), kit.detect.cpu()))
    assert "could not be compiled" in str(why)
    gemmdb.inductor.reset_stats()
    stats = kit.checked(nn.Sequential(model, nn.Tanh()), X)
    assert (kit.lowered(stats), stats["errors"]) == ([kit.ATEN], [])


def test_a_graph_with_branches_is_compiled_again_as_a_whole(kit, table, no_micro_gemm):
    """On a CPU the branches get no kernel of ours, whose weight must be a constant, and are lowered twice as well."""
    model = Branching().eval()
    problems = served(kit, table, model)
    assert len(problems) == 3
    run = torch.compile(model)
    for x in (X.abs(), -X.abs()):
        kit.close(run(x), model(x))
    products = gemmdb.inductor.stats()["products"]
    assert sorted(kit.problems()) == sorted(problems)
    assert {(entry["config"], entry["rung"]) for entry in products} == {("aten:default", "exact")}
    assert all("could not be compiled" in entry["note"] for entry in products)
    assert len(gemmdb.inductor.stats()["errors"]) == 1


def test_the_second_attempt_reports_what_tracing_lost_too(monkeypatch):
    """It begins with the journal of before, and what the joint graph lost was entered into that of the first."""
    JOURNAL.drop()
    apart = DecomposedGemms(None)
    apart._events.append(Event("a product", "uncovered"))
    seen = []

    def attempts():
        apart.report()
        apart.report()  # Of a nested graph.
        seen.append([event.problem for event in JOURNAL.pending()])
        if not uncompiled.again():
            JOURNAL.enter(Event("another", "exact", "triton:tile"))
            raise RuntimeError("refused")

    uncompiled.attempt(attempts, attempts)
    JOURNAL.drop()
    uncompiled.clear()
    assert seen == [["a product"]] * 2


def test_a_forced_kernel_still_fails(kit, no_micro_gemm):
    """A build measures candidates like this, and notes which ones do not compile."""
    with force(kit.CPP), pytest.raises(Exception, match="refused, as was asked"):
        kit.compiled(linear(), X)


def test_what_fails_without_a_kernel_of_ours_fails_as_before(kit, table, no_micro_gemm):
    """Nothing is blamed on gemmdb, nor remembered."""
    with inductor_config.patch({"cpp.cxx": ("/bin/false",)}), pytest.raises(Exception, match=r"false|C\+\+|cxx"):
        served(kit, table, linear())
    assert not uncompiled._rejected


ON_A_GPU = """
    from pathlib import Path

    from kit import gpu, no_gpu
    import torch
    from kit.devices import H200
    from kit.lab import rows
    from torch._inductor import compile_fx, config
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    import gemmdb.inductor
    from gemmdb import Policy, Problem
    from gemmdb.inductor.lower.adapter import emission
    from gemmdb.table.writer import Store

    def plain(x, w, v, u, p):
        return x @ w

    def branching(x, w, v, u, p):
        # Products alone: without a driver no Triton kernel can be compiled, Inductor's own included.
        h = x @ w
        # The operator that `torch.cond` becomes, which would ask for the driver first.
        return torch.ops.higher_order.cond(p, lambda h, v, u: (h @ v,), lambda h, v, u: (h @ u,), (h, v, u))

    SIZES = ((48, 512), (512, 256), (256, 128), (256, 128))

    def compiled(**given):
        gemmdb.inductor.reset_stats()
        gemmdb.inductor.enable(on_miss="aten", policy=Policy(confirm=False, unverified_gain=0), **given)
        patches = {"compile_threads": 1, "fx_graph_cache": False, "shape_padding": False}
        with torch.no_grad(), config.patch(patches), emission.no_gpu_context():
            with FakeTensorMode():
                made = [torch.empty(sizes, dtype=torch.bfloat16, device="cuda") for sizes in SIZES]
                made.append(torch.empty((), dtype=torch.bool, device="cuda"))
                graph = make_fx(globals()[sys.argv[2]])(*made)
            compile_fx.compile_fx(graph, made)
        return gemmdb.inductor.stats()

    path = Path(sys.argv[1])
    with Store.open(path) as store:
        for text in {product["problem"] for product in compiled()["products"]}:
            store.add(rows(Problem.parse(text), {gpu.make("tile"): 0.5}, device=H200, clock="graph"))
        store.refresh()
    found = compiled(tables=[path])
    print(json.dumps([found["products"], found["errors"]]))
"""


@pytest.fixture
def without_a_driver(kit, tmp_path):
    """What became of a function of ON_A_GPU: its GEMMs and the errors. Triton needs the driver's library for the
    last step, and there is none here: a kernel is lowered and cannot be compiled then."""
    if torch.version.cuda is None:
        pytest.skip("needs torch's build for CUDA")
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    if torch.cuda.is_available():
        pytest.skip("Triton's kernels cannot be compiled only where there is no driver")
    path = f"{kit.ROOT}:{kit.ROOT / 'tests'}"
    fresh = {"TRITON_CACHE_DIR": f"{tmp_path}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/inductor"}
    return lambda name: kit.run(ON_A_GPU, {"PYTHONPATH": path, **fresh}, [str(tmp_path / "t.db"), name])


@pytest.mark.parametrize(("name", "count"), [("plain", 1), ("branching", 3)])
def test_triton_kernels_that_cannot_be_compiled_are_atens(without_a_driver, name, count):
    """Also in branches: their nested graphs are the same in both attempts, and hold what the first one decided."""
    products, (error,) = without_a_driver(name)
    assert sum(product["count"] for product in products) == count
    assert {(product["rung"], product["config"]) for product in products} == {("exact", "aten:default")}
    assert {product["note"] for product in products} == {"a kernel of its graph could not be compiled"}
    assert error.startswith("compiling triton:tile ")
