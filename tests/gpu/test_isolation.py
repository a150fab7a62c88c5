"""A candidate that breaks costs its own row; the process restarts and the others are measured.

The breaking kernels take the place of rendered sources in the compile cache, where the real process picks them up.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gemmdb.generators.effort import Effort
from gemmdb.generators.measure.cuda.measurer import CudaMeasurer
from gemmdb.generators.measure.cuda.precompiler import Precompiler
from gemmdb.generators.measure.cuda.render import plan
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Protocol, Status

PROTOCOL = Protocol("graph", "cold", 10, 7)
PROBLEM = Problem.gemm("mm", m=16, n=512, k=512)
EFFORT = Effort(name="test", breadth=1, samples=7, estimate=3, drop=1.1, keep=2, measure_s=20.0)
"""A process that takes the place of a broken one is limited from its cold start: libraries, context, first kernels."""


def tile(block_k: int) -> Config:
    return Config.of(
        "triton", "tile", block_m=16, block_n=64, block_k=block_k, group_m=8, split_k=1, reduce="none", swap=0,
        load="pointer", dequant="cast", warps=4, stages=3,
    )  # fmt: skip


GOOD, BAD = tile(64), tile(128)
BODIES = {
    # Far outside of every allocation.
    Status.CRASH: "tl.store(out + (tl.program_id(0).to(tl.int64) + 1) * 1099511627776, 1.0)",
    # Some minutes of dependent loads: it ends by itself should the process outlive its time limit.
    Status.TIMEOUT: """seen = tl.load(A, volatile=True).to(tl.float32)
    for _ in range(1000000000):
        seen += tl.load(A, volatile=True).to(tl.float32)
    tl.store(out, seen)""",
    Status.WRONG: "tl.store(out + tl.program_id(0) * 64 + tl.arange(0, 64), tl.zeros((64,), dtype=tl.bfloat16))",
    Status.ERROR: "tl.store(out, no_such_name)",
}


@pytest.fixture
def measurer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaMeasurer]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    (tmp_path / "gemmdb").mkdir()
    pool = Precompiler(90, 227 * 1024, processes=2)
    measurer = CudaMeasurer(0, EFFORT, pool).start()
    yield measurer
    measurer.close()
    pool.close()


@pytest.mark.parametrize("status", BODIES)
def test_a_broken_candidate_costs_one_row(measurer: CudaMeasurer, tmp_path: Path, status: Status) -> None:
    unit = plan(PROBLEM, BAD).launches[0].unit
    head = unit.source.partition("#constants#")[0].partition("\n    ")[0]
    (tmp_path / "gemmdb" / f"gemmdb_{unit.key}.py").write_text(f"{head}\n    {BODIES[status]}\n")
    outcomes = measurer.measure(PROBLEM, [ATEN, BAD, GOOD], PROTOCOL, 7)
    assert [outcome.status for outcome in outcomes] == [Status.OK, status, Status.OK], outcomes
    assert all(outcome.times and outcome.times.samples == 7 for outcome in (outcomes[0], outcomes[2]))


def test_a_problem_too_large_for_the_memory_does_not_stop_the_next(measurer: CudaMeasurer) -> None:
    huge = Problem.gemm("mm", m=16, n=2**18, k=2**17, dtype="fp32")
    assert {outcome.status for outcome in measurer.measure(huge, [ATEN, GOOD], PROTOCOL, 7)} == {Status.OOM}
    assert {outcome.status for outcome in measurer.measure(PROBLEM, [ATEN, GOOD], PROTOCOL, 7)} == {Status.OK}


def test_two_processes_agree(kit: Any, measurer: CudaMeasurer) -> None:
    problem = Problem.gemm("mixed_mm", m=16, n=8192, k=8192, fusion="scale")
    configs = [ATEN, tile(256)]
    # Where other tests use the GPU meanwhile, they take turns with these kernels and clear their caches.
    within = 0.03 if kit.alone else 0.5
    first = measurer.measure(problem, configs, PROTOCOL, 25)
    second = measurer.fresh().measure(problem, configs, PROTOCOL, 25)
    for one, other in zip(first, second, strict=True):
        assert one.times is not None
        assert other.times is not None
        assert other.times.median_us == pytest.approx(one.times.median_us, rel=within)


def test_a_build_on_this_gpu_fills_a_table_that_answers(tmp_path: Path) -> None:
    from gemmdb.devices.detect import cuda
    from gemmdb.generators.build.build import BuildRequest, build
    from gemmdb.table.reader import Table

    device = cuda()
    assert device is not None
    shapes = tmp_path / "shapes.json"
    shapes.write_text('[{"op": "mixed_mm", "m": [1, 16], "n": 4096, "k": 4096, "fusion": "scale"}]')
    request = BuildRequest(arch=device.arch, shapes=str(shapes), effort="quick", out=tmp_path / "gpu.db")
    report = build(request)
    assert report.measured == 2
    assert build(request).measured == 0
    table = Table.open(tmp_path / "gpu.db")
    try:
        for m in (1, 16):
            verdict = table.verdict(Problem.gemm("mixed_mm", m=m, n=4096, k=4096, fusion="scale"), device)
            assert verdict is not None
            assert verdict.pick.backend == "triton"
            assert verdict.speedup > 1.5
    finally:
        table.close()
