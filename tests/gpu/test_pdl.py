"""Programmatic dependent launch on a GPU: kernels that begin early wait for what they read, in every way of running."""

from __future__ import annotations

import importlib.util
import statistics
from pathlib import Path
from typing import Any

import pytest
from kit import gpu

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl
from torch import nn
from torch.nn.functional import rms_norm, silu

import gemmdb.inductor
from gemmdb.generators.measure.cuda.render import plan
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Protocol, Status

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="needs compute capability 9.0"
)

KERNELS = {
    "gemv": gpu.make("gemv", pdl=1), "gemv, ahead": gpu.make("gemv", pdl=2), "narrow": gpu.make("narrow", pdl=1),
    "narrow, ahead": gpu.make("narrow", pdl=2), "narrow, split": gpu.make("narrow", pdl=2, split_k=4),
    "tile": gpu.make("tile", pdl=1), "tile, ahead": gpu.make("tile", pdl=2),
    "tile, split": gpu.make("tile", pdl=2, split_k=4, reduce="fixup"), "swapped": gpu.make("tile", pdl=2, swap=1),
}  # fmt: skip
ROUNDS = 100
LATE_NS = 300_000


@triton.jit
def late(source, target, nanoseconds, SIZE: tl.constexpr):
    """Lets the next kernel begin, and writes `target` a while after that."""
    tl.extra.cuda.gdc_launch_dependents()
    begin = tl.extra.cuda.globaltimer()
    now = begin
    while now - begin < nanoseconds:
        now = tl.extra.cuda.globaltimer()
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(target + at, tl.load(source + at))


def alone(config: Any, folder: Path, waits: bool) -> tuple[Any, Any, Any]:
    """A kernel by itself for a product of one row with a weight [512, 1024]; without its wait unless it `waits`. Also
    the activation that it reads, and a function that runs it behind a kernel which writes the activation late."""
    problem = Problem.gemm("mm", m=1, n=512, k=1024)
    (launch,), made = plan(problem, config).launches, plan(problem, config)
    source = launch.unit.source
    assert source.count("tl.extra.cuda.gdc_wait()") == 1
    path = folder / f"kernel_{waits}.py"
    path.write_text(source if waits else source.replace("    tl.extra.cuda.gdc_wait()\n", ""))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    wanted, weight = gpu.rand(1, 1024), gpu.rand(512, 1024)
    tensors = {
        "A": torch.zeros_like(wanted), "B": weight, "out": gpu.rand(1, 512), "arg_M": 1, "arg_N": 512, "arg_K": 1024,
        "partials": torch.empty(max(made.partials, 1), device="cuda"),
        "counters": torch.zeros(max(made.counters, 1), dtype=torch.int32, device="cuda"),
    }  # fmt: skip
    values = [tensors[name] for name, _ in launch.unit.args]
    how = {"num_warps": launch.unit.warps, "num_stages": launch.unit.stages, "launch_pdl": True}

    def run(nanoseconds: int) -> Any:
        tensors["A"].zero_()
        late[(4,)](wanted, tensors["A"], nanoseconds, 256)
        module.kernel[launch.grid](*values, **how)
        torch.cuda.synchronize()
        return tensors["out"].clone()

    run(0)
    return wanted @ weight.t(), run, tensors


@pytest.mark.parametrize("config", KERNELS.values(), ids=KERNELS)
def test_a_kernel_waits_for_its_activation(config, tmp_path) -> None:
    wanted, run, _ = alone(config, tmp_path, waits=True)
    for _ in range(ROUNDS):
        gpu.close(run(LATE_NS), wanted)


@pytest.mark.parametrize("name", ["gemv", "narrow", "tile"])
def test_without_its_wait_it_would_be_seen(name, tmp_path) -> None:
    """The test above can fail: a kernel that does not wait begins before the activation is there, and reads zeros."""
    wanted, run, _ = alone(KERNELS[name], tmp_path, waits=False)
    assert run(LATE_NS).abs().max() < 0.01 * wanted.abs().max()


class Layers(nn.Module):
    """A few layers as those of a decoder, whose buffers Inductor uses again and again."""

    def __init__(self, depth: int = 4, width: int = 1024, feed: int = 2048) -> None:
        super().__init__()
        linear = lambda k, n: nn.Linear(k, n, bias=False, device="cuda", dtype=torch.bfloat16)  # noqa: E731
        self.up = nn.ModuleList(linear(width, 2 * feed) for _ in range(depth))
        self.down = nn.ModuleList(linear(feed, width) for _ in range(depth))
        self.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        for up, down in zip(self.up, self.down, strict=True):
            gate, value = up(rms_norm(x, x.shape[-1:])).chunk(2, dim=-1)
            x = x + down(silu(gate) * value)
        return x


def without(config: Any) -> Any:
    """The same config, launched as always."""
    return type(config).of(config.backend, config.kernel, **{n: v for n, v in config.params if n != "pdl"})


def rows(config: Any) -> int:
    return 1 if config.kernel == "gemv" else 5


@pytest.mark.parametrize("config", KERNELS.values(), ids=KERNELS)
def test_a_graph_is_right_and_all_its_kernels_take_part(clean, config) -> None:
    model = Layers()
    x = gpu.rand(rows(config), 1024)
    wanted, code = gpu.compiled(model, x, config=without(config))
    assert "gdc" not in code
    gpu.anew()
    found, code = gpu.compiled(model, x, config=config)
    assert gpu.served() == [config.text] * 8
    kernels = code.count("@triton.jit")
    assert (code.count("gdc_wait()"), code.count("gdc_launch_dependents()")) == (kernels, kernels)
    assert code.count("'launch_pdl': True") == kernels
    gpu.close(found, wanted, 0.01)
    gpu.anew()
    assert "gdc" not in gpu.compiled(model, x, config=without(config))[1]


@pytest.mark.parametrize("name", ["gemv, ahead", "narrow, split", "tile, ahead"])
@pytest.mark.parametrize("way", ["plain", "stream", "graph", "reduce-overhead"])
def test_it_is_right_however_it_runs(clean, name, way) -> None:
    """Activations and weights change between the calls, by kernels that are launched as always."""
    config, model = KERNELS[name], Layers()
    x = gpu.rand(rows(config), 1024)
    how = {"mode": "reduce-overhead"} if way == "reduce-overhead" else {}
    with gemmdb.inductor.force(config):
        run = torch.compile(model, **how)
        for _ in range(3):
            run(x)
    stream = torch.cuda.Stream() if way in ("stream", "graph") else torch.cuda.current_stream()
    graph = torch.cuda.CUDAGraph()
    if way == "graph":
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.graph(graph, stream=stream):
            result = run(x)
    for index in range(ROUNDS):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            x.copy_(torch.randn_like(x))
            model.up[index % 4].weight.neg_()
            if way == "graph":
                graph.replay()
            found = (result if way == "graph" else run(x)).clone()
            gpu.close(found, model(x), 0.03)
        torch.cuda.current_stream().wait_stream(stream)


def test_a_c_wrapper_launches_as_always(clean) -> None:
    """The C++ code of torch launches no kernel this way."""
    config, model = KERNELS["narrow, ahead"], Layers(1)
    x = gpu.rand(rows(config), 1024)
    found, code = gpu.compiled(model, x, config=config, options={"cpp_wrapper": True})
    assert gpu.served() == [config.text] * 2
    assert "gdc" not in code
    assert "launch_pdl': True" not in code
    gpu.close(found, model(x))


def test_the_clock_between_other_kernels() -> None:
    """A kernel is right between its neighbours, alone and as emitted code, and its time is what it adds to theirs."""
    from gemmdb.generators.measure.cuda import emitted, session
    from gemmdb.generators.measure.cuda.emitted_config import Emitted

    problem = Problem.gemm("mixed_mm", m=1, n=4096, k=4096, fusion="scale")
    protocol, cold = (Protocol("graph", state, 20, 30, version=3) for state in ("chain", "cold"))
    major, minor = torch.cuda.get_device_capability()
    configs = [gpu.make("gemv"), KERNELS["gemv"], KERNELS["gemv, ahead"], Emitted.code_of(KERNELS["gemv, ahead"])]
    emitted.write(problem, configs[-1], 10 * major + minor)
    for config in (ATEN, *configs):
        assert session.load(problem, config, protocol).status is Status.OK
        assert session.load(problem, config, cold).status is Status.OK
    between = session.time_round(problem, configs, protocol, 15)
    alone = session.time_round(problem, configs, cold, 15)
    for config in (ATEN, *configs):
        assert 1 < statistics.median(between[config]) < 2 * statistics.median(alone[config]) + 5
