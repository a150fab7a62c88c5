"""Live tuning on a GPU: short, kept for the next process, and nothing where it would do harm."""

import pytest
import torch

import gemmdb.inductor
from gemmdb.devices import detect
from gemmdb.generators.measure.cuda import calls, elementwise
from gemmdb.generators.measure.cuda.artifacts import Triton
from gemmdb.generators.measure.cuda.bench import sink_buffer
from gemmdb.inductor.benchmark import client
from gemmdb.inductor.benchmark import tune as tuning


@pytest.fixture
def compile_live(clean, tmp_path, monkeypatch):
    """A function that compiles an unmeasured GEMM anew, and returns gemmdb's stats."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    a = torch.randn(16, 8448, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(544, 8448, device="cuda", dtype=torch.bfloat16)

    def run(on_miss="live"):
        torch._dynamo.reset()
        gemmdb.inductor.reset_stats()
        policy = gemmdb.Policy(near=False, model=False, on_miss=on_miss, live_s=100.0, live_calls=10**9)
        gemmdb.inductor.enable(on_miss=on_miss, policy=policy)
        out = torch.compile(lambda a, w: a @ w.t())(a, w)
        torch.testing.assert_close(out, a @ w.t(), rtol=2e-2, atol=2e-1)
        return gemmdb.inductor.stats()

    yield run
    gemmdb.inductor.disable()
    client.close()


@pytest.mark.timed  # Beside thirty compilers a hundred seconds were not enough.
def test_measured_once_then_exact(compile_live):
    state = torch.cuda.get_rng_state()
    first = compile_live()
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert (first["rungs"], first["benchmarked"]) == ({"live": 1}, 0), [one["note"] for one in first["products"]]
    assert compile_live("aten")["rungs"] == {"exact": 1}


def test_nothing_is_measured_with_little_memory_free(compile_live, monkeypatch):
    # Not by taking the memory: other processes on this GPU would fail, or free some of theirs meanwhile.
    monkeypatch.setattr(tuning, "FREE_BYTES", torch.cuda.mem_get_info()[1] + 1)
    (product,) = compile_live()["products"]
    assert product["config"] == "aten:default"
    assert "MiB are free" in product["note"]


def test_a_gemm_with_nothing_to_save_starts_nothing(clean, tmp_path, monkeypatch):
    """The rotary embedding of decoders in transformers: frequencies [64, 1] times positions [1, 4], in fp32."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    client.close()
    gemmdb.inductor.reset_stats()
    gemmdb.inductor.enable()
    frequencies, positions = torch.rand(1, 64, 1, device="cuda"), torch.arange(4.0, device="cuda").view(1, 1, 4)
    out = torch.compile(lambda f, p: (f @ p).cos())(frequencies, positions)
    torch.testing.assert_close(out, (frequencies @ positions).cos())
    products = gemmdb.inductor.stats()["products"]
    gemmdb.inductor.disable()
    assert [one["rung"] for one in products if "k=1 " in one["problem"]] in ([], ["aten"])
    assert client._TUNER._process is None


def test_a_launch_needs_no_compiler_where_the_kernel_was_built_elsewhere(tmp_path, monkeypatch):
    """Else the process that measures would wait for gcc at the first launch of each signature."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    major, minor = torch.cuda.get_device_capability()
    launch = elementwise.flush()
    assert not Triton(launch.unit).build(major * 10 + minor).failure

    def compiled(*what):
        raise AssertionError("something is compiled at a launch")

    monkeypatch.setattr("triton.runtime.build._build", compiled)
    calls._kernel.cache_clear()
    names = {"data": sink_buffer().expand(16).clone(), "sink": sink_buffer()}
    calls.launcher(launch, names, {"elements": 16})()
    torch.cuda.synchronize()


def test_nothing_is_measured_while_a_graph_is_captured():
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        rejected = tuning.device_rejection(detect.cuda())
    assert str(rejected) == "a CUDA graph is being captured"
