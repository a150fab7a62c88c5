"""`gemmdb vllm` on a GPU: vLLM's kernels are timed and checked, its loader reads the file, a second run measures the
rest."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm.model_executor", reason="vLLM's Python layer is not installed")

from gemmdb.generators.vllm import kernels, operands
from gemmdb.generators.vllm.bench import Bench
from gemmdb.generators.vllm.layers import USUAL, Experts, Linear
from gemmdb.generators.vllm.tune import tune
from gemmdb.generators.vllm_files import Tile
from gemmdb.table.measurement import Status

LAYERS = [Experts(8, 2, 512, 1024), Experts(64, 4, 512, 256, fp8=True), Linear(1024, 512)]
DEVICE = torch.device("cuda")


def quiet(words: str, left_s: float | None) -> None:
    """Shows nothing."""


def benched(layer: Experts | Linear, m: int) -> Bench:
    weights = [operands.weight(one, layer.fp8, DEVICE) for one in layer.weights]
    return Bench(kernels.kernel(layer, weights, m, DEVICE), m)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_the_file_has_checked_configs_that_are_no_slower_and_a_second_run_measures_the_rest(layer, tmp_path):
    kernels.versions(layer, DEVICE)  # The import takes longer than the rest.
    begin = time.monotonic()
    found = tune(layer, (1, 64), tmp_path, 12.0, quiet)
    assert time.monotonic() - begin < 13.2
    assert list(found.found) == [1, 64]
    assert found.path == tmp_path / layer.name(torch.cuda.get_device_name()).text
    written = json.loads(found.path.read_text())
    assert list(map(int, written)) == list(USUAL)
    for m, row in found.found.items():
        assert written[str(m)] == row.tile.values
        assert row.status is Status.OK
        assert row.times is not None
        assert row.current or row.times.ratio < 0.98
    assert written["4096"] == kernels.present(layer, 4096).values
    lines = found.rows.read_text()
    again = tune(layer, (1, 64, 256), tmp_path, 5.0, quiet)
    assert found.rows.read_text().startswith(lines)
    assert list(again.found) == [1, 64, 256]
    assert {m: again.found[m] for m in (1, 64)} == dict(found.found)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_the_result_of_vllms_kernel_agrees_with_the_exact_one(layer):
    for m in (1, 3, 70):
        one = benched(layer, m)
        assert one.usual_error < (0.08 if layer.fp8 else 0.01)


def test_a_config_with_a_wrong_result_is_not_timed():
    """A step along K across two blocks of scales applies the first block's to both."""
    one = benched(Linear(1024, 512), 64)
    wrong, right = Tile(64, 64, 256, 1, 4, 2), Tile(64, 64, 128, 1, 4, 3)
    rows = {row.tile: row for row in one.time([wrong, right], 3)}
    assert rows[wrong].status is Status.WRONG
    assert rows[wrong].times is None
    assert rows[right].times is not None


def test_a_config_that_does_not_fit_is_a_row_and_the_next_is_timed():
    one = benched(Experts(8, 2, 512, 1024), 64)
    large = Tile(16, 64, 512, 1, 4, 8)
    rows = {row.tile: row for row in one.time([large, replace(one.current, stages=2)], 3)}
    assert (rows[large].status, rows[large].times) == (Status.ERROR, None)
    assert rows[replace(one.current, stages=2)].status is Status.OK


def test_kernels_are_compiled_ahead_without_being_run(monkeypatch):
    one = benched(Experts(8, 2, 512, 1024), 64)
    tile = Tile(32, 32, 64, 16, 4, 2)
    kernels.compile_ahead([one.kernel.call(tile)])
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton.JITFunction, "_do_compile", None)
    (row,) = one.time([tile], 3)
    assert row.status is Status.OK


def test_vllm_finds_the_file_of_a_linear_in_its_package(tmp_path, monkeypatch):
    layer = Linear(1024, 512)
    found = tune(layer, (16,), tmp_path, 5.0, quiet)
    module = kernels._module(kernels.FP8)
    monkeypatch.setattr(module, "__file__", str(tmp_path / "fp8_utils.py"))
    (tmp_path / "configs").mkdir()
    assert found.path is not None
    found.path.rename(Path(tmp_path) / "configs" / found.path.name)
    module.get_w8a8_block_fp8_configs.cache_clear()
    try:
        assert kernels.present(layer, 16) == found.found[16].tile
    finally:
        module.get_w8a8_block_fp8_configs.cache_clear()
