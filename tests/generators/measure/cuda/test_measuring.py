"""What of measuring on a GPU can be checked without one."""

import importlib.util
from itertools import islice
from pathlib import Path

import pytest

from gemmdb.generators.files import archive
from gemmdb.generators.measure.cuda import session
from gemmdb.generators.measure.cuda.bench import moved
from gemmdb.generators.measure.cuda.precompiler import Precompiler
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Protocol, Status

ROOT = Path(__file__).parents[4]
RESULTS = sorted((ROOT / "benchmarks" / "results" / "h200").glob("*/rows-*.jsonl.xz"))


def test_copies_of_an_operand_keep_its_strides_offset_and_values():
    import torch

    padded = torch.arange(200.0).reshape(10, 20)[:, 3:11].t()
    copy = moved(padded)
    assert torch.equal(copy, padded)
    assert copy.stride() == padded.stride()
    assert copy.storage_offset() == padded.storage_offset()
    assert copy.data_ptr() != padded.data_ptr()


@pytest.mark.parametrize(
    ("alive", "text", "status"),
    [
        (True, "CUDA error: out of memory", Status.OOM),
        (False, "CUDA error: out of memory", Status.CRASH),
        (True, "no such kernel", Status.ERROR),
    ],
)
def test_memory_that_is_exhausted_is_told_by_more_than_one_exception(make, monkeypatch, alive, text, status):
    def refuse(*_):
        raise RuntimeError(text)

    monkeypatch.setattr(session, "_load", refuse)
    monkeypatch.setattr(session, "_alive", lambda: alive)
    found = session.load(Problem.gemm("mm", m=16, n=512, k=512), make.tile(), Protocol("graph", "cold", 20, 5))
    assert (found.status, found.fatal) == (status, not alive)
    assert text in found.detail


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="triton is installed here")
def test_a_missing_compiler_is_the_outcome_of_the_candidate(make, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    pool = Precompiler(90, 232448, processes=1)
    try:
        failure = pool.failure(Problem.gemm("mm", m=16, n=512, k=512), make.tile(), 60)
    finally:
        pool.close()
    assert failure is not None
    assert failure[0] is Status.ERROR
    assert "No module named 'triton'" in failure[1]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_recorded_rows_can_still_be_read(path):
    rows = list(islice(archive.read(path), 300))
    assert len(rows) == 300
    assert {row.device.sku for row in rows} == {"NVIDIA H200"}
    assert any(row.status is Status.OK and row.config.backend == "triton" for row in rows)


def test_there_are_recorded_rows():
    assert len(RESULTS) >= 2
