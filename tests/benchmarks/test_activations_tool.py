"""benchmarks.torch activations: its options, lines and summary. There is no GPU here: times are invented."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.torch import activations
from gemmdb.errors import InputError

SERVED = {"sizes": [64, 512, 256], "activation": "relu", "config": "cublaslt:matmul_activation algo=66", "us": 8.0,
          "default_us": 10.0, "apart": 0.002, "errors": []}  # fmt: skip
ATEN = {**SERVED, "config": "aten:default", "us": None, "default_us": None}
RECORDED = Path(__file__).parents[2] / "benchmarks" / "results" / "h200" / "activations.json"


def test_a_line_has_what_the_compile_confirmed():
    assert activations.line(SERVED) == (
        "64 x 512 x 256 relu: cublaslt:matmul_activation, 10.0 us in default mode, 8.0 us, 1.250x, "
        "results 2.0e-03 apart"
    )
    assert activations.line({**ATEN, "errors": ["x"]}).endswith("aten:default, results 2.0e-03 apart, failed")


def test_the_summary_counts_what_is_served():
    assert activations.summary([ATEN]) == "none of 1 layers calls cuBLASLt with its activation"
    quicker = {**SERVED, "us": 5.0}
    assert activations.summary([SERVED, quicker, ATEN]) == (
        "2 of 3 layers call cuBLASLt with their activation: 1.581x of default mode in the geometric mean, "
        "median 1.625x, 1.250x to 2.000x"
    )


@pytest.mark.parametrize("text", ["8192", "8192x0", "8192xa", "1x2x3", ""])
def test_a_wrong_layer_is_named(text):
    with pytest.raises(InputError, match="--layers: 2 positive numbers"):
        activations.parsed("--layers", text, 2)


def test_each_layer_is_written_when_it_is_done(monkeypatch, tmp_path, capsys):
    seen = []

    def measured(m, n, k, activation):
        seen.append((m, n, k, activation))
        return {name: SERVED[name] for name in ("config", "us", "default_us", "apart", "errors")}

    monkeypatch.setattr(activations, "measured", measured)
    monkeypatch.setattr(activations, "without_tables", lambda folder: None)
    out = tmp_path / "found.json"
    activations.main(Namespace(layers="512x256", rows="16,64", seconds=60.0, out=out))
    assert seen == [(m, 512, 256, name) for m in (16, 64) for name in ("relu", "gelu_tanh")]
    assert [row["sizes"] for row in json.loads(out.read_text())["layers"]] == [[m, 512, 256] for m in (16, 16, 64, 64)]
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_the_recorded_figures_are_those_of_the_page():
    page = (RECORDED.parents[3] / "docs" / "results.md").read_text()
    rows = json.loads(RECORDED.read_text())["layers"]
    found = activations.summary(rows)
    assert found in " ".join(page.split())
