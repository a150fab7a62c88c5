"""cuBLASLt's algorithms in compiled programs: their bits, their workspace, streams, threads, graphs, and C++ code."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import algorithm, anew, close, compiled, ints, rand, served, solved

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.cublaslt import launch
from gemmdb.cublaslt.matmul import MAX_WORKSPACE
from gemmdb.kernels.cublaslt import attributes

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("clean", "cublaslt")]
gemm = Problem.gemm
M, N, K = 96, 512, 8192
DEEP = gemm("mm", m=M, n=N, k=K)
"""Few tiles and a deep K: its sum is worth splitting."""
BIASED = gemm("addmm", m=M, n=N, k=K)
SPACE = re.compile(r"empty_strided_cuda\(\((\d+), \), \(1, \), torch.uint8\)")


@functools.cache
def plain(problem: Problem) -> Config:
    """The first algorithm of cuBLASLt that does not split K. For a deep K, its heuristic may only propose those that
    do."""
    whole = [one for one in proposed(problem) if one.values["split_k"] == 1]
    found = whole or [one for one in map(unsplit, proposed(problem)) if needs(problem, one) == 0]
    return found[0] if found else pytest.skip("no algorithm here leaves K whole")


@functools.cache
def split(problem: Problem) -> Config:
    """An algorithm that splits K and needs a workspace."""
    parts = [one for one in proposed(problem) if one.values["split_k"] != 1]
    more = (changed(plain(problem), split_k=count, reduction=2) for count in (2, 3, 4, 6, 8))
    found = next((one for one in (*parts, *more) if needs(problem, one)), None)
    return found or pytest.skip("no algorithm here splits K with a workspace")


def each(choose: Callable[[Problem], Config], *names: str) -> Callable[[Problem], Config]:
    """A choice for each GEMM of a program, whatever is fused with it: `choose`, or `plain` for ops other than
    `names`."""

    def chosen(problem: Problem) -> Config:
        bare = replace(problem, fusion="none")
        return choose(bare) if problem.op in names else plain(bare)

    return chosen


def changed(config: Config, **values: int) -> Config:
    return algorithm(**{name: int(value) for name, value in config.values.items()} | values)


def unsplit(config: Config) -> Config:
    return changed(config, split_k=1, reduction=0)


@functools.cache
def proposed(problem: Problem) -> tuple[Config, ...]:
    from gemmdb.generators.measure.cuda import cublaslt

    return tuple(cublaslt.proposed(problem, 64))


def needs(problem: Problem, config: Config) -> int | None:
    """The bytes of workspace that an algorithm needs, None if the library does not support it or they are too many."""
    from gemmdb.generators.measure.cuda import cublaslt

    try:
        cublaslt._supported(problem, config)
    except RuntimeError:
        return None
    return cublaslt._matmul(problem).supported(attributes(config))[1]


def linear(x: Any, w: Any) -> Any:
    return torch.mm(x, w.t())


def biased(b: Any, x: Any, w: Any) -> Any:
    return torch.addmm(b, x, w.t())


def ready(model: Callable[..., Any], *inputs: Any, config: Config, **how: Any) -> Callable[..., Any]:
    """The model, compiled with `config` and called once."""
    anew()
    run: Callable[..., Any] = torch.compile(model, **how)
    with torch.no_grad(), gemmdb.inductor.force(config):
        run(*inputs)
    assert set(served()) == {config.text}, gemmdb.inductor.stats()["products"]
    return run


def called() -> bool:
    """Whether every GEMM so far is a call of cuBLASLt. Prints those that are not."""
    others = [one for one in gemmdb.inductor.stats()["products"] if one["backend"] != "cublaslt"]
    print(*others, *gemmdb.inductor.stats()["errors"], sep="\n")
    return bool(served()) and not others


@pytest.fixture(autouse=True)
def nothing_fell_back(caplog: pytest.LogCaptureFixture) -> Any:
    yield
    assert not [one for one in caplog.get_records("call") if "compiled for cuBLASLt" in one.getMessage()]


def test_without_a_split_the_bits_are_aten_s() -> None:
    problem = gemm("mm", m=768, n=2048, k=7168)
    x, w = rand(768, 7168), rand(2048, 7168)
    wanted, first = torch.mm(x, w.t()), plain(problem)
    for config in dict.fromkeys([first, *(one for one in proposed(problem) if one.values["split_k"] == 1)][:8]):
        found, code = compiled(linear, x, w, config=config)
        assert "gemmdb_cublaslt.prepare(" in code
        assert not SPACE.search(code)
        if config.values["algo"] == first.values["algo"]:
            assert torch.equal(found, wanted), config.text
        close(found, wanted)
        anew()


def test_a_split_sum_has_a_workspace_of_the_graph() -> None:
    x, w = rand(M, K), rand(N, K)
    found, code = compiled(linear, x, w, config=split(DEEP))
    (size,) = map(int, SPACE.findall(code))
    assert 0 < size <= MAX_WORKSPACE
    close(found, x.double() @ w.double().t())


PROBLEMS = [
    gemm("mm", m=24, n=1024, k=512),
    gemm("mm", m=33, n=1000, k=776, layout="nn"),
    gemm("mm", m=128, n=512, k=520, layout="tn", dtype="fp16"),
    gemm("mm", m=1, n=512, k=512),
    gemm("mm", m=64, n=512, k=512, fusion="pointwise:math"),
    gemm("addmm", m=176, n=1024, k=512),
    gemm("addmm", m=40, n=1024, k=512, layout="nn", dtype="fp16", fusion="pointwise"),
    gemm("addmm", m=48, n=1024, k=512, bias="full"),
    gemm("addmm", m=200, n=1000, k=520, layout="nn", dtype="fp16", bias="full", fusion="pointwise"),
    gemm("bmm", batch=6, m=64, n=128, k=256),
    gemm("bmm", batch=2, m=64, n=128, k=256, layout="nn"),
    gemm("bmm", batch=6, m=64, n=128, k=256, layout="tn", dtype="fp16"),
    gemm("int_mm", m=64, n=512, k=512),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.text[:60])
def test_every_op_and_layout(problem: Problem) -> None:
    configs = proposed(problem)[:3]
    assert configs
    for config in configs:
        anew()
        solved(problem, config)
        assert served() == [config.text]


def test_operands_may_lie_within_others() -> None:
    x, w, b = rand(M + 8, 3 * K)[8:, K : 2 * K], rand(N, 2 * K)[:, K:], rand(N + 8)[8:]

    def model(x: Any, w: Any, b: Any) -> Any:
        return torch.addmm(b, x, w.t()), torch.mm(x[16:80, 64:], w[8:, 64:].t())

    with torch.no_grad(), gemmdb.inductor.force(each(plain), "test"):
        found = torch.compile(model)(x, w, b)
    assert called()
    for one, wanted in zip(found, model(x.double(), w.double(), b.double()), strict=True):
        close(one, wanted)


def test_a_graph_is_captured_and_replayed() -> None:
    x, w = rand(M, K), rand(N, K)
    run = ready(linear, x, w, config=split(DEEP))
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        found = run(x, w)
    for _ in range(3):
        x.copy_(rand(M, K))
        graph.replay()
        assert torch.equal(found, run(x, w))
        close(found, x.double() @ w.double().t())


@pytest.mark.parametrize("choose", [plain, split])
def test_reduce_overhead(choose: Callable[[Problem], Config]) -> None:
    x, w, v = rand(M, K), rand(K, K) / 64, rand(N, K)

    def model(x: Any, w: Any, v: Any) -> Any:
        return linear(torch.relu(linear(x, w)), v)

    torch.compiler.cudagraph_mark_step_begin()
    run = torch.compile(model, mode="reduce-overhead")
    with torch.no_grad(), gemmdb.inductor.force(each(choose, "mm"), "test"):
        for _ in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            x = rand(M, K)
            close(run(x, w, v), model(x.double(), w.double(), v.double()))
    assert called()


def test_streams_at_once_share_no_workspace() -> None:
    w, inputs, streams = rand(N, K), [rand(M, K) for _ in range(4)], [torch.cuda.Stream() for _ in range(4)]
    run = ready(linear, inputs[0], w, config=split(DEEP))
    with torch.no_grad():
        wanted = [run(x, w) for x in inputs]
        torch.cuda.synchronize()
        found = []
        for _ in range(50):
            for x, stream, alone in zip(inputs, streams, wanted, strict=True):
                with torch.cuda.stream(stream):
                    found.append((run(x, w), alone))
        torch.cuda.synchronize()
    assert all(torch.equal(one, alone) for one, alone in found)


def test_threads_with_biases_of_their_own() -> None:
    x, w = rand(M, K), rand(N, K)
    run = ready(biased, rand(N), x, w, config=plain(BIASED))
    wrong: list[Any] = []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
            x = rand(M, K)
            given = [(bias, torch.addmm(bias, x, w.t())) for bias in (100 * rand(N) for _ in range(5))]
            for _ in range(50):
                found = [(run(bias, x, w), wanted) for bias, wanted in given]
                torch.cuda.current_stream().synchronize()
                wrong.extend(one for one, wanted in found if (one - wanted).abs().max() > 0.02 * wanted.abs().max())

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_more_biases_than_are_remembered() -> None:
    x, w = rand(M, K), rand(N, K)
    run = ready(biased, rand(N), x, w, config=plain(BIASED))
    many = 100 * rand(3 * launch.MAX_OPERATIONS, N)
    with torch.no_grad():
        for bias in many:
            close(run(bias, x, w), torch.addmm(bias, x, w.t()))


def test_gradients() -> None:
    given = [rand(*sizes).requires_grad_() for sizes in ((M, 1024), (1024, 512), (512, 256))]

    def model(x: Any, w: Any, v: Any) -> Any:
        return torch.relu(x @ w) @ v

    with gemmdb.inductor.force(each(plain), "test"):
        found = torch.autograd.grad(torch.compile(model)(*given).float().square().mean(), given)
    assert called()
    for one, wanted in zip(found, torch.autograd.grad(model(*given).float().square().mean(), given), strict=True):
        close(one, wanted)


@pytest.mark.parametrize("choose", [plain, split])
def test_cpp_wrapper(choose: Callable[[Problem], Config]) -> None:
    x, w, b, i, j = rand(M, K), rand(N, K), rand(N), ints(64, 512), ints(512, 512)

    def model(x: Any, w: Any, b: Any, i: Any, j: Any) -> Any:
        return torch.relu(linear(x, w)), torch.addmm(b, x, w.t()), torch._int_mm(i, j.t())

    def run() -> Any:
        from torch._inductor.utils import run_and_get_code

        with torch.no_grad(), gemmdb.inductor.force(each(choose, "mm", "addmm"), "test"):
            return run_and_get_code(torch.compile(model, options={"cpp_wrapper": True}), x, w, b, i, j)

    found, codes = run()
    assert "struct Library {" in codes[0]
    assert called()
    for one, wanted in zip(found, model(x, w, b, i, j), strict=True):
        close(one, wanted)
