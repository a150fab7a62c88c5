"""`build` on a GPU with cuBLASLt's algorithms: their rows, their verdicts, and what a fault costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.gpu import algorithm

from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.effort import named
from gemmdb.generators.measure.remeasure import remeasure
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.hardware import HOPPER
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Measurement, Status
from gemmdb.table.reader import Table

pytestmark = pytest.mark.timeout(240)

SLOW_IN_ATEN = Problem.gemm("mm", m=768, n=2048, k=7168)
"""On an H100, cuBLAS's first choice took 43 us and another of its algorithms 32 us."""
PROBLEMS = (
    SLOW_IN_ATEN,
    Problem.gemm("addmm", m=176, n=6144, k=4096),
    Problem.gemm("mm", m=384, n=2048, k=7168, fusion="pointwise"),
)
OTHERS = (
    Problem.gemm("bmm", batch=8, m=128, n=256, k=128),
    Problem.gemm("mm", m=128, n=512, k=512, layout="nn"),
    Problem.gemm("mm", m=128, n=512, k=512, layout="tn", dtype="fp16"),
    Problem.gemm("int_mm", m=64, n=512, k=512),
    Problem.gemm("mm", m=1, n=512, k=512),
    Problem.gemm("mm", m=33, n=1000, k=776),
)
ONLY = "cublaslt"


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    from gemmdb.generators.measure.cuda.backend import CudaBackend

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    made = CudaBackend()
    yield made
    made.close()


def request(tmp_path: Path, *problems: Problem, effort: str = "quick") -> BuildRequest:
    shapes = tmp_path / "shapes.jsonl"
    shapes.write_text("".join(f'{{"problem": "{problem.text}"}}\n' for problem in problems))
    return BuildRequest(shapes=str(shapes), effort=effort, out=tmp_path / "gpu.db", gpus=1, allow=ONLY)


def rows(path: Path, problem: Problem, backend) -> list[Measurement]:
    with Table.open(path) as table:
        return [row for row in table.rows(problem, backend.device) if row.config != ATEN]


def timed(found: list[Measurement]) -> set[Config]:
    return {row.config for row in found if row.times}


@pytest.mark.parametrize("effort", ["quick", "lean"])
def test_a_build_picks_an_algorithm_where_it_is_faster(tmp_path, backend, effort):
    report = build(request(tmp_path, *PROBLEMS, effort=effort), backend=backend)
    assert (report.measured, report.left) == (3, 0)
    for problem in PROBLEMS:
        found = rows(report.out, problem, backend)
        assert {row.config.backend for row in found} == {"cublaslt"}
        assert not [row for row in found if row.status in (Status.WRONG, Status.CRASH, Status.TIMEOUT)]
        assert len(timed(found)) >= named(effort, "cuda").keep
        refused = [row.detail for row in found if row.status is Status.ERROR]
        assert not [text for text in refused if "cublas" not in text.lower() and "workspace" not in text], refused
    if backend.device.capability == HOPPER:
        with Table.open(report.out) as table:
            verdict = table.verdict(SLOW_IN_ATEN, backend.device)
        assert verdict is not None
        assert verdict.pick.backend == "cublaslt"
        assert verdict.speedup > 1.05


def test_every_layout_and_dtype_is_computed_right(tmp_path, backend):
    report = build(request(tmp_path, *OTHERS), backend=backend)
    for problem in OTHERS:
        found = rows(report.out, problem, backend)
        assert timed(found), [(row.config.text, row.status, row.detail) for row in found][:4]
        assert not [row for row in found if row.status in (Status.WRONG, Status.CRASH)]


def test_a_build_that_is_done_is_not_done_again_and_its_rows_hold(tmp_path, backend):
    report = build(request(tmp_path, SLOW_IN_ATEN), backend=backend)
    assert report.measured == 1
    from gemmdb.generators.measure.cuda.backend import CudaBackend

    again = build(request(tmp_path, SLOW_IN_ATEN), backend=CudaBackend())
    assert (again.before, again.measured, again.rows) == (1, 0, 0)
    held = remeasure(report.out, 1, tolerance=0.3)
    assert (held.problems, held.failed) == (1, 0)


def test_what_cublaslt_does_not_support_is_an_error_with_a_reason(tmp_path, backend, monkeypatch):
    from gemmdb.generators.measure.cuda import space

    strange = algorithm(algo=4095)
    monkeypatch.setattr(space.cublaslt_menu, "configs", lambda problem, device: [strange])
    report = build(request(tmp_path, SLOW_IN_ATEN), backend=backend)
    (row,) = (row for row in rows(report.out, SLOW_IN_ATEN, backend) if row.config == strange)
    assert row.status is Status.ERROR
    assert "does not support this algorithm" in row.detail
