"""Products of batches on a GPU: Inductor's template served as one choice, ATen from a table, and both measured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import is_template, legal, make, measure, solved

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.kernels.config import ATEN
from gemmdb.key.layout import Layout
from gemmdb.table.measurement import Status

pytestmark = pytest.mark.usefixtures("clean")


def template(**changes: int) -> Config:
    base = {"block_m": 64, "block_n": 64, "block_k": 32, "group_m": 8, "stages": 3, "warps": 4}
    return Config.of("triton", "inductor_bmm", **{**base, **changes})


def bmm(batch: int = 6, m: int = 72, n: int = 136, k: int = 200, **rest: Any) -> Problem:
    return Problem.gemm("bmm", batch=batch, m=m, n=n, k=k, **rest)


def laid(a: Layout | None = None, b: Layout | None = None, **rest: Any) -> Problem:
    """A problem whose operands lie in other ways."""
    problem = bmm(**rest)
    first = problem.a if a is None else replace(problem.a, layout=a)
    return replace(problem, a=first, b=problem.b if b is None else replace(problem.b, layout=b))


CASES = [
    *(bmm(layout=layout) for layout in ("nn", "nt", "tn", "tt")),
    bmm(dtype="fp16", fusion="pointwise"),
    bmm(dtype="fp32"),
    bmm(dtype="fp32", tf32=True, layout="nn"),
    bmm(batch=7, m=13, n=17, k=19),
    bmm(batch=7, m=13, n=17, k=19, layout="tt", dtype="fp16"),
    bmm(m=1, n=1000, k=520),
    bmm(m=200, n=1, k=520, layout="nn"),
    bmm(batch=1000, m=16, n=16, k=64),
    laid(b=Layout("col", 8, "broadcast")),
    laid(b=Layout("row", 8, "broadcast"), layout="nn"),
    laid(Layout("row-padded", 8, "interleaved"), Layout("col-padded", 8, "interleaved")),
    laid(Layout("row-padded", 8, "interleaved"), Layout("row-padded", 8, "interleaved"), layout="nn"),
    laid(Layout("row", 1), Layout("col", 2)),
    laid(Layout("row-padded", 4), Layout("col-padded", 8)),
]


OURS = [
    make("batch"), make("batch", swap=1), make("batch", split_k=3, block_k=32), make("batch", swap=1, split_k=2),
    make("batch", block_m=64, block_k=32, group_m=1, stages=4), make("batch", block_n=16, block_k=16, split_k=2),
]  # fmt: skip


@pytest.mark.parametrize("problem", CASES, ids=lambda problem: problem.text)
def test_the_template_is_served_as_one_choice(kit: Any, problem: Problem) -> None:
    _, code = solved(problem, template())
    assert is_template(code)
    assert kit.served() == [template().text]


@pytest.mark.parametrize("config", OURS, ids=lambda config: config.text)
@pytest.mark.parametrize("problem", CASES, ids=lambda problem: problem.text)
def test_our_kernel_is_served_as_one_choice(kit: Any, problem: Problem, config: Config) -> None:
    if not legal(config, problem):
        pytest.skip("not legal")
    _, code = solved(problem, config)
    assert is_template(code)
    assert kit.served() == [config.text]


@pytest.mark.parametrize("config", [template(), *OURS], ids=lambda config: config.text)
def test_a_baddbmm_that_adds_nothing_takes_them(kit: Any, config: Config) -> None:
    q, k = kit.rand(8, 100, 192), kit.rand(8, 192, 72)

    def scores(q: Any, k: Any) -> Any:
        return torch.baddbmm(torch.full((1,), torch.nan, device=q.device, dtype=q.dtype), q, k, beta=0, alpha=0.125)

    found, code = kit.compiled(scores, q, k, config=config)
    kit.close(found, q.double() @ k.double() * 0.125)
    assert kit.served() == [config.text]
    assert is_template(code)


@pytest.mark.parametrize("config", OURS, ids=lambda config: config.text)
def test_a_sliced_sum_is_the_same_at_every_call(kit: Any, config: Config) -> None:
    a, b = kit.rand(8, 16, 4096), kit.rand(8, 4096, 64)
    with gemmdb.inductor.force(config):
        call = torch.compile(torch.bmm)
        first = call(a, b)
        assert all(torch.equal(first, call(a, b)) for _ in range(20))
    kit.close(first, a.double() @ b.double())
    assert kit.served() == [config.text]


@pytest.mark.parametrize("tile", [{"block_m": 16, "block_n": 128, "block_k": 64}, {"block_m": 128, "warps": 8},
                                  {"block_n": 32, "block_k": 128, "stages": 4}], ids=str)  # fmt: skip
def test_tiles_larger_and_smaller_than_the_matrices(tile: dict[str, int]) -> None:
    for problem in (bmm(m=40, n=48, k=80), bmm(m=40, n=48, k=80, layout="tn")):
        torch._dynamo.reset()
        gemmdb.inductor.reset_stats()
        assert is_template(solved(problem, template(**tile))[1])


def test_a_table_serves_the_template(kit: Any, tmp_path: Path) -> None:
    problem = bmm()
    path = kit.table(tmp_path / "table.db", {problem: {template(): 50.0}})
    gemmdb.inductor.enable(tables=[path], on_miss="error")
    assert is_template(solved(problem, None)[1])
    (entry,) = gemmdb.inductor.stats()["products"]
    assert (entry["rung"], entry["config"], entry["table"]) == ("exact", template().text, str(path))


def test_a_table_serves_aten(kit: Any, tmp_path: Path) -> None:
    problem = bmm()
    path = kit.table(tmp_path / "table.db", {problem: {}})
    gemmdb.inductor.enable(tables=[path], on_miss="error")
    _, code = solved(problem, None)
    assert "extern_kernels.bmm(" in code
    (entry,) = gemmdb.inductor.stats()["products"]
    assert (entry["rung"], entry["config"]) == ("exact", ATEN.text)


def test_nothing_is_benchmarked_under_max_autotune(kit: Any, tmp_path: Path) -> None:
    import torch._inductor.config as inductor

    problem = bmm(batch=16, m=513, n=520, k=520)  # Default mode pads no rows of 16 bytes.
    path = kit.table(tmp_path / "table.db", {problem: {template(): 50.0}})
    gemmdb.inductor.enable(tables=[path], on_miss="error")
    with inductor.patch(max_autotune=True, shape_padding=True):
        assert is_template(solved(problem, None)[1])


def test_attention_written_out(kit: Any) -> None:
    q, k, v = (kit.rand(2, 4, 96, 64) for _ in range(3))

    def attention(q: Any, k: Any, v: Any) -> Any:
        # With a softmax Inductor would find its own attention.
        return torch.sigmoid(torch.matmul(q, k.transpose(-1, -2)) / 8) @ v

    found, code = kit.compiled(attention, q, k, v, config=template())
    kit.close(found, attention(q.double(), k.double(), v.double()))
    assert kit.served() == [template().text] * 2
    assert "extern_kernels.bmm" not in code


def test_a_batch_of_one_is_a_gemm_of_two_matrices(kit: Any) -> None:
    a, b = kit.rand(1, 64, 128), kit.rand(1, 128, 64)
    with gemmdb.inductor.force(lambda problem: None):
        found = torch.compile(torch.bmm)(a, b)
    kit.close(found, a.double() @ b.double())
    (entry,) = gemmdb.inductor.stats()["products"]
    assert entry["problem"].startswith("mm m=64 ")


def test_the_backward_takes_the_template_too(kit: Any) -> None:
    a, b = (kit.rand(4, 64, 64).requires_grad_() for _ in range(2))
    with gemmdb.inductor.force(template()):
        torch.compile(torch.bmm)(a, b).square().sum().backward()
    found = a.grad
    a.grad = None
    torch.bmm(a, b).square().sum().backward()
    kit.close(found, a.grad)
    assert kit.served() == [template().text] * 3


@pytest.mark.parametrize("config", [template(), *OURS[1:4]], ids=lambda config: config.text)
@pytest.mark.parametrize("problem", CASES, ids=lambda problem: problem.text)
def test_all_are_measured(problem: Problem, config: Config) -> None:
    """The generator's way: the code is generated as in the compile pool, loaded, checked, captured and timed."""
    from gemmdb.generators.measure.cuda.artifacts import Emission

    if not legal(config, problem):
        pytest.skip("not legal")
    built = Emission(problem, config).build(90)
    assert built.failure == ""
    measure(problem, [config])


def test_a_build_measures_aten_and_templates(tmp_path: Path) -> None:
    from gemmdb.devices.detect import cuda
    from gemmdb.generators.build.build import BuildRequest, build
    from gemmdb.table.reader import Table

    shapes = tmp_path / "shapes.json"
    shapes.write_text('[{"op": "bmm", "batch": 32, "m": 128, "n": 128, "k": 64, "dtype": "fp16"}]')
    out = tmp_path / "table.db"
    report = build(BuildRequest(arch="native", shapes=str(shapes), out=out))
    assert (report.measured, report.left) == (1, 0)
    problem, device = bmm(batch=32, m=128, n=128, k=64, dtype="fp16"), cuda()
    assert device is not None
    with Table.open(out) as table:
        rows, verdict = table.rows(problem, device), table.verdict(problem, device)
    timed = {row.config for row in rows if row.times}
    assert ATEN in timed
    assert len({config for config in timed if config.kernel == "inductor_bmm"}) >= 2
    assert {row.status for row in rows} <= {Status.OK, Status.SLOW}
    assert verdict is not None
    assert 0 < verdict.ratio <= 1
