"""What of measuring on a GPU can be checked without one."""

from itertools import islice
from pathlib import Path

import pytest
import torch

from gemmdb.generators.files import archive
from gemmdb.generators.measure.cuda import session
from gemmdb.generators.measure.cuda.bench import moved
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Protocol, Status

ROOT = Path(__file__).parents[4]
RESULTS = sorted((ROOT / "benchmarks" / "results" / "h200").glob("*/rows-*.jsonl.xz"))
SHORT = {"rows-35.jsonl.xz": 153}
"""Rows of the archives that have fewer than 300."""


@pytest.mark.parametrize("strides", [(0, 16, 1), (16, 48, 1), (130, 16, 1), (128, 1, 8)])
def test_copies_of_an_operand_keep_its_strides_offset_and_values(strides):
    tensor = torch.randn(500).as_strided((3, 8, 16), strides, 4)
    copy = moved(tensor)
    assert (copy.stride(), copy.storage_offset()) == (strides, 4)
    assert torch.equal(copy, tensor)
    assert copy.data_ptr() != tensor.data_ptr()


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
    monkeypatch.setattr(session, "alive", lambda: alive)
    found = session.load(Problem.gemm("mm", m=16, n=512, k=512), make.tile(), Protocol("graph", "cold", 20, 5))
    assert (found.status, found.fatal) == (status, not alive)
    assert text in found.detail


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_recorded_rows_can_still_be_read(path):
    rows = list(islice(archive.read(path), 300))
    assert len(rows) == SHORT.get(path.name, 300)
    assert {row.device.sku for row in rows} == {"NVIDIA H200"}
    assert any(row.status is Status.OK and row.config.backend in ("triton", "cutlass") for row in rows)


def test_there_are_recorded_rows():
    assert len(RESULTS) >= 2
