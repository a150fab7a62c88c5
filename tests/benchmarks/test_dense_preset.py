"""The preset `dense`: what it lists, in which order, and the steps of M that it computes."""

from __future__ import annotations

import json
from argparse import Namespace
from math import ceil
from pathlib import Path

import pytest

from benchmarks.dense import models, preset
from benchmarks.dense.models import Convolutions, Decoder, Encoder, Layer

STRATA = ((17, 64), (65, 256), (257, 1024), (1025, 4608))


@pytest.mark.parametrize(("name", "residual"), [("dense", False), ("residual", True)])
def test_the_preset_is_what_the_tool_writes(tmp_path: Path, name: str, residual: bool) -> None:
    made = tmp_path / "made.json"
    preset.main(Namespace(out=made, residual=residual))
    assert made.read_text() == (preset.PRESETS / f"{name}.json").read_text(), "run python -m benchmarks.dense preset"


def test_residuals_are_matrices_that_an_addmm_adds() -> None:
    listed = preset.problems(residual=True)
    assert {(item["op"], item["bias"]) for item in listed} == {("addmm", "full")}
    decoders = [layer for model in models.DECODERS.values() for layer in model.layers()]
    wanted = {(layer.n, layer.k) for layer in decoders if layer.role == "residual" and not layer.bias}
    assert wanted <= {(item["n"], item["k"]) for item in listed}
    for n, k in ((4096, 4096), (4096, 14336)):  # The output and the last layer of an MLP of Llama 3.1 8B.
        rows = {item["m"] for item in listed if (item["n"], item["k"]) == (n, k)}
        assert rows == {*preset.RESIDUAL_ROWS, *preset.MORE_RESIDUAL_ROWS}


def test_the_preset_tells_the_sizes_of_its_models() -> None:
    told = json.loads((preset.PRESETS / "dense.json").read_text())["models"]
    assert told["Llama 3.1 8B"] == [4096, 32, 8, 128, 14336, 128256, "", [1], True]


@pytest.mark.parametrize("count", [100, 300, 1000, 3000])
def test_any_prefix_is_spread(count: int) -> None:
    listed = preset.problems()
    assert len(listed) >= 6000
    for low, high in STRATA:
        share = sum(low <= item["m"] <= high for item in listed[:count]) / count
        assert 0.15 <= share <= 0.40, (low, high)
    assert len({(item["n"], item["k"]) for item in listed[:count]}) >= min(count * 0.6, 280)
    for name, value in (("op", "addmm"), ("dtype", "fp16"), ("layout", "nn"), ("layout", "tn")):
        assert sum(item.get(name) == value for item in listed[:count]) >= count / 100


def test_layers_of_leading_models_have_neighbours_in_m() -> None:
    listed = {(item["n"], item["k"], item["m"]) for item in preset.problems() if set(item) == {"op", "m", "n", "k"}}
    for n, k in ((4096, 14336), (28672, 4096), (8192, 8192), (1536, 7168)):
        assert {(n, k, m) for m in preset.ROWS} <= listed


def test_an_lm_head_has_few_rows() -> None:
    heads = [item for item in preset.problems() if item["n"] > 100_000]
    assert heads
    assert max(item["m"] for item in heads) == 64


@pytest.mark.parametrize("n", [1024, 4096, 6144, 18944, 28672])
def test_the_steps_fill_waves(n: int) -> None:
    """A row more than a full wave takes another wave."""
    assert preset.steps(n)
    for m in preset.steps(n):
        fills = [
            (rows, wave)
            for rows, columns in preset.TILES
            for wave in preset.WAVES
            if m in (full := _largest(rows, columns, wave, n), full + preset.STEP_ROWS)
        ]
        assert fills, m


def _largest(rows: int, columns: int, wave: int, n: int) -> int:
    """The largest multiple of a tile's rows whose tiles fit into the waves, by counting."""
    m = 0
    while (m + rows) // rows * ceil(n / columns) <= wave * preset.PROCESSORS:
        m += rows
    return m


def test_a_narrow_output_fills_no_wave_within_the_range() -> None:
    assert all(m <= preset.HIGHEST_STEP for m in preset.steps(64))


def test_a_decoder_has_fused_and_separate_layers_of_each_shard() -> None:
    found = list(Decoder(4096, 32, 8, 128, 14336, 128256, "qkv", (1, 2)).layers())
    assert {Layer(6144, 4096, True), Layer(4096, 4096, True), Layer(1024, 4096, True)} <= set(found)
    assert {Layer(4096, 4096), Layer(28672, 4096), Layer(14336, 4096), Layer(4096, 14336)} <= set(found)
    assert {Layer(3072, 4096, True), Layer(4096, 2048), Layer(4096, 7168), Layer(64128, 4096)} <= set(found)


def test_an_encoder_has_a_gate_only_if_it_says_so() -> None:
    assert Layer(6144, 768, True) not in set(Encoder(768, 3072).layers())
    assert Layer(2304, 768) in set(Encoder(768, 1152, bias=False, gated=True).layers())


def test_gradients_of_a_linear_and_of_a_convolution() -> None:
    """By their sizes as multiplied: dX [tokens, k] and dW as the weight is stored."""
    (inputs, weight) = (series[0] for series in preset.backward(Layer(3072, 768), (200,)))
    assert inputs == {"op": "mm", "m": 200, "n": 768, "k": 3072, "layout": "nn"}
    assert weight == {"op": "mm", "m": 3072, "n": 768, "k": 200, "layout": "tn"}
    (first, *_) = Convolutions(768).layers()
    (inputs, weight) = (series[0] for series in preset.backward(first, (200,)))
    assert inputs == {"op": "mm", "m": 200, "n": 768, "k": 2304}
    assert weight == {"op": "mm", "m": 768, "n": 2304, "k": 200, "layout": "tn"}


def test_samples_have_layers_that_the_preset_does_not_list() -> None:
    listed = {(item["n"], item["k"]) for item in preset.problems()}
    unseen = {(layer.n, layer.k) for layer in preset.layers_of(models.UNSEEN.values())}
    assert len(unseen - listed) >= 80
