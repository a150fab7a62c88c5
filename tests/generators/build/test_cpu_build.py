"""Real builds on this CPU, small ones: compiled by Inductor, timed, stored, resumed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kit.replay import stored

from gemmdb.devices.detect import cpu
from gemmdb.errors import GemmdbError
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.measure.remeasure import remeasure
from gemmdb.kernels.config import ATEN
from gemmdb.table.measurement import TIMED, Status
from gemmdb.table.reader import Table

pytestmark = pytest.mark.slow
ITEMS = [
    {"op": "mm", "m": 4, "n": 64, "k": 64, "dtype": "fp32", "constant_weight": True},
    {"op": "int_mm", "m": 32, "n": 64, "k": 64},
    {"op": "mixed_mm", "m": 4, "n": 64, "k": 64, "fusion": "scale", "constant_weight": True},
    {"op": "mixed_mm", "m": 4, "n": 64, "k": 64},
    {"op": "bmm", "batch": 3, "m": 8, "n": 16, "k": 32, "dtype": "fp32"},
    {"op": "scaled_mm", "m": 8, "n": 16, "k": 32, "scales": "tensor", "fast_accum": True, "bias": "1d"},
]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    path = tmp_path_factory.mktemp("shapes") / "shapes.jsonl"
    path.write_text("\n".join(map(json.dumps, ITEMS)))
    return path


@pytest.fixture(scope="module")
def built(shapes, tmp_path_factory, vector_units):
    """An undisturbed build: (request, report)."""
    request = BuildRequest(arch="cpu", shapes=str(shapes), out=tmp_path_factory.mktemp("tables") / "cpu.db")
    return request, build(request)


def test_every_op_is_measured_and_right(built):
    request, report = built
    assert report.measured == len(ITEMS)
    found = stored(request.out)
    assert {row.status for row in found} == {Status.OK, Status.ILLEGAL}
    timed = {row.problem.op for row in found if row.config == ATEN and row.times}
    assert timed == {"mm", "int_mm", "mixed_mm", "bmm", "scaled_mm"}
    assert {row.config.name for row in found if row.times} == {"aten:default", "aten:int8pack_mm", "cpp:packed_gemm"}
    assert all(row.device == cpu() and row.protocol.clock == "host" for row in found)
    assert all(row.error is not None for row in found if row.times)
    assert any(row.compile_s and row.compile_s > 0 for row in found)


def test_the_table_answers(built):
    request, _ = built
    with Table.open(request.out) as table:
        verdicts = [table.verdict(problem, cpu()) for problem in {row.problem for row in stored(request.out)}]
    assert len(verdicts) == len(ITEMS)
    assert all(0 < verdict.expected_us < 1e5 and verdict.ratio <= 1 for verdict in verdicts)


def test_the_same_build_again_measures_nothing(built):
    request, _ = built
    report = build(request)
    assert (report.before, report.measured, report.rows) == (len(ITEMS), 0, 0)


def test_killed_and_run_again_equals_undisturbed(built, shapes, tmp_path):
    request, _ = built
    out, ops = tmp_path / "killed.db", ("mm", "int_mm")  # One with several candidates, and one to come after it.
    script = (
        "import sys; from pathlib import Path; from gemmdb.generators.build.build import *;"
        f"build(BuildRequest(arch='cpu', ops={ops}, shapes=sys.argv[1], out=Path(sys.argv[2])))"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(shapes), str(out)])
    while process.poll() is None and not _has_rows(out):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    kept = {row.text for row in stored(out)}
    report = build(BuildRequest(arch="cpu", ops=ops, shapes=str(shapes), out=out))
    assert kept < {row.text for row in stored(out)}
    assert report.measured == len(ops) - report.before > 0
    assert _outcomes(out, ops) == _outcomes(request.out, ops)


def _has_rows(path: Path) -> bool:
    try:
        return bool(stored(path))
    except (OSError, GemmdbError):
        return False


def _outcomes(path, ops):
    """What two builds have in common: every candidate, and whether it was timed or how it failed."""
    return {
        (row.problem.text, row.config.text, "timed" if row.status in TIMED else row.status.value)
        for row in stored(path)
        if row.problem.op in ops
    }


def test_remeasuring_compares_with_the_table(built):
    request, _ = built
    before = request.out.read_bytes()
    exactly = remeasure(request.out, 1, tolerance=0.0)  # No time repeats to the last bit.
    assert (exactly.problems, exactly.within, len(exactly.moved)) == (1, 0, exactly.rows)
    assert exactly.timed >= 1
    assert all(0.01 < moved.now_us / moved.recorded_us < 100 for moved in exactly.moved)
    assert request.out.read_bytes() == before
