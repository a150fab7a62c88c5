"""A GPU that disappears ends the work; one whose memory others hold costs rows that are measured again later."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gemmdb.errors import GemmdbError
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.effort import Effort
from gemmdb.generators.measure.cuda.measurer import CudaMeasurer
from gemmdb.generators.measure.cuda.precompiler import Precompiler
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Protocol, Status
from gemmdb.table.reader import Table

PROTOCOL = Protocol("graph", "cold", 10, 7)
EFFORT = Effort(name="test", breadth=1, samples=7, estimate=3, drop=1.1, keep=2, measure_s=30.0)
PROBLEM = Problem.gemm("mm", m=16, n=8192, k=8192)
"""128 MiB of weight, of which several copies are timed."""
LEFT = 700 * 2**20
"""Bytes of memory that are left free: enough for a process to start, and too few for the operands."""


@pytest.fixture
def measurer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaMeasurer]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    pool = Precompiler(90, 227 * 1024, processes=1)
    made = CudaMeasurer(0, EFFORT, pool).start(confirms=False)
    yield made
    made.close()
    pool.close()


def test_a_gpu_that_disappears_ends_the_work_with_one_line(measurer: CudaMeasurer) -> None:
    (outcome,) = measurer.measure(PROBLEM, [ATEN], PROTOCOL, 7)
    assert outcome.status is Status.OK
    environment = measurer.process.environment
    measurer.process.environment = {**environment, "CUDA_VISIBLE_DEVICES": ""}  # As the driver answers then.
    measurer.process.end()
    with pytest.raises(GemmdbError, match=r"^GPU \d+ no longer works \(.*; all measurements so far are stored"):
        measurer.measure(PROBLEM, [ATEN], PROTOCOL, 7)
    measurer.process.environment = environment
    measurer.process.end()
    (outcome,) = measurer.measure(PROBLEM, [ATEN], PROTOCOL, 7)
    assert outcome.status is Status.OK


def _hold() -> list[torch.Tensor]:
    """All memory of the GPU but LEFT."""
    gc.collect()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    return [torch.empty(max(free - LEFT, 0), dtype=torch.uint8, device="cuda")]


def test_a_gpu_whose_memory_others_hold_is_out_of_memory_and_measured_by_the_next_build(tmp_path: Path) -> None:
    from gemmdb.devices.detect import cuda

    device = cuda()
    assert device is not None
    shapes = tmp_path / "shapes.json"
    shapes.write_text('[{"op": "mm", "m": 16, "n": 8192, "k": 8192}]')
    request = BuildRequest(arch=device.arch, shapes=str(shapes), effort="quick", out=tmp_path / "gpu.db", gpus=1)
    held = _hold()
    try:
        build(request)
    finally:
        held.clear()
        torch.cuda.empty_cache()
    with Table.open(tmp_path / "gpu.db") as table:
        rows = [row for row in table.measurements() if row.config == ATEN]
        assert {row.status for row in rows} == {Status.OOM}, rows
        assert table.verdict(PROBLEM, device) is None
    assert build(request).measured == 1
    with Table.open(tmp_path / "gpu.db") as table:
        assert table.verdict(PROBLEM, device) is not None
