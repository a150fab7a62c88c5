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
from gemmdb.inductor import force, legality, refused
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


@pytest.fixture
def no_micro_gemm(tmp_path):
    """Inside, no kernel of the C++ template can be compiled."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    path = tmp_path / "refusing"
    path.write_text(REFUSING.format(shlex.quote(get_cpp_compiler())))
    path.chmod(0o755)
    with inductor_config.patch({"cpp.cxx": (str(path),), "freezing": True}), torch.no_grad():
        yield
    refused.clear()


def linear():
    """A model that no other test has in its caches."""
    return nn.Sequential(nn.Linear(64, 48 + int.from_bytes(os.urandom(1)), bias=False), nn.ReLU()).eval()


def served(kit, table, model):
    """Compile with a table in which the C++ template wins the model's product; the problem."""
    with force(lambda problem: None):
        kit.compiled(model, X)
    (text,) = kit.problems()
    gemmdb.inductor.reset_stats()
    gemmdb.inductor.enable(on_miss="aten", tables=[table({text: kit.CPP})], policy=Policy(confirm=False))
    kit.close(kit.compiled(model, X), model(X))
    return Problem.parse(text)


def test_the_compile_goes_on_with_aten_and_remembers_the_kernel(kit, table, no_micro_gemm):
    problem = served(kit, table, linear())
    (entry,) = gemmdb.inductor.stats()["products"]
    assert (entry["config"], entry["rung"], entry["count"]) == ("aten:default", "exact", 1)
    assert "could not be compiled" in entry["note"]
    (error,) = gemmdb.inductor.stats()["errors"]
    assert kit.CPP.text in error
    why = legality.objection(kit.CPP, Query(problem, kit.detect.cpu()))
    assert "could not be compiled" in why


def test_the_next_graph_does_not_try_again(kit, table, no_micro_gemm):
    model = linear()
    served(kit, table, model)
    gemmdb.inductor.reset_stats()
    kit.close(kit.compiled(nn.Sequential(model, nn.Tanh()), X), model(X).tanh())
    assert gemmdb.inductor.stats()["errors"] == []
    (entry,) = gemmdb.inductor.stats()["products"]
    assert entry["config"] == "aten:default"


def test_the_second_attempt_reports_what_tracing_lost_too(monkeypatch):
    """It begins with the journal of before, and what the joint graph lost was entered into that of the first."""
    from gemmdb.inductor import uncompiled
    from gemmdb.inductor.journal import JOURNAL, Event
    from gemmdb.inductor.match.taken_apart import TakenApart

    JOURNAL.drop()
    apart = TakenApart(None)
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
    refused.clear()
    assert seen == [["a product"]] * 2


def test_a_forced_kernel_still_fails(kit, no_micro_gemm):
    """A build measures candidates like this, and notes which ones do not compile."""
    with force(kit.CPP), pytest.raises(Exception, match="refused, as was asked"):
        kit.compiled(linear(), X)


def test_what_fails_without_a_kernel_of_ours_fails_as_before(kit, table, no_micro_gemm):
    """Nothing is blamed on gemmdb, nor remembered."""
    with inductor_config.patch({"cpp.cxx": ("/bin/false",)}), pytest.raises(Exception, match=r"false|C\+\+|cxx"):
        served(kit, table, linear())
    assert not refused._refused


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
    from gemmdb.inductor.adapter import emitting
    from gemmdb.table.writer import Store

    def compiled(**given):
        gemmdb.inductor.reset_stats()
        gemmdb.inductor.enable(on_miss="aten", policy=Policy(confirm=False, unverified_gain=0), **given)
        patches = {"compile_threads": 1, "fx_graph_cache": False, "shape_padding": False}
        with torch.no_grad(), config.patch(patches), emitting.no_gpu_context():
            with FakeTensorMode():
                made = [torch.empty(sizes, dtype=torch.bfloat16, device="cuda") for sizes in ((48, 512), (512, 256))]
                graph = make_fx(torch.matmul)(*made)
            compile_fx.compile_fx(graph, made)
        return gemmdb.inductor.stats()

    (product,) = compiled()["products"]
    path = Path(sys.argv[1])
    with Store.open(path) as store:
        store.add(rows(Problem.parse(product["problem"]), {gpu.make("tile"): 0.5}, device=H200, clock="graph"))
        store.refresh()
    found = compiled(tables=[path])
    print(json.dumps([found["products"], found["errors"]]))
"""


@pytest.mark.skipif(torch.version.cuda is None, reason="needs torch's build for CUDA")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's kernels cannot be compiled where there is no driver")
def test_a_triton_kernel_that_cannot_be_compiled_is_atens(kit, tmp_path):
    """Triton needs the driver's library for the last step, and there is none here: the kernel was lowered then."""
    path = f"{kit.ROOT}:{kit.ROOT / 'tests'}"
    fresh = {"TRITON_CACHE_DIR": f"{tmp_path}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{tmp_path}/inductor"}
    (product,), (error,) = kit.run(ON_A_GPU, {"PYTHONPATH": path, **fresh}, [str(tmp_path / "t.db")])
    assert (product["rung"], product["config"]) == ("exact", "aten:default")
    assert product["note"] == "a kernel of its graph could not be compiled"
    assert error.startswith("compiling triton:tile ")
