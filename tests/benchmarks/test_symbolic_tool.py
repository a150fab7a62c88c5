"""benchmarks.torch symbolic: its options, lines and summary, and a symbolic compile of a small piece on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.torch import llama, pieces, symbolic
from gemmdb.errors import InputError

SMALL = llama.Shape(hidden=64, heads=4, key_heads=2, head=16, feed=96, vocabulary=128, layers=1)


def row(rows: int, static: float, symbolic: float) -> dict[str, Any]:
    taken = {"default": [100.0] * 9, "static": [100.0 / static] * 9, "symbolic": [100.0 / symbolic] * 9}
    return {"rows": rows, "taken": taken}


def test_a_single_row_or_text_is_refused() -> None:
    assert symbolic.parsed("16, 4") == [4, 16]
    for text in ("1,2", "2;4", ""):
        with pytest.raises(InputError, match="whole numbers from 2 on"):
            symbolic.parsed(text)


def test_the_summary_says_what_of_the_gain_is_kept_and_what_is_slower() -> None:
    rows = [row(2, 1.2, 1.2), row(64, 1.2, 1.1), row(512, 1.0, 0.98), {"rows": 4, "failure": "out of memory"}]
    assert symbolic.line(rows[1]) == "64 rows: default 100.0 us, static 83.3 us (1.200x), symbolic 90.9 us (1.100x)"
    assert symbolic.line(rows[3]) == "4 rows: out of memory"
    said = symbolic.summary(rows)
    assert said.startswith(
        "3 sizes: static 1.129x of default mode, symbolic 1.090x, 0.965 of its speed, 0.693 of its gain"
    )
    assert "slower than default mode: 512; worst against static 0.917x" in said
    assert symbolic.summary(rows[3:]) == "nothing was measured"


def test_a_small_piece_compiles_once_for_all_sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    piece = llama.Piece(SMALL, "bf16", "cpu").eval()
    how = {"shape": SMALL, "device": "cpu", "on_miss": "aten", "bounds": (2, 64)}
    made = pieces.compiled(piece, "gemmdb", 32, how)
    assert len(made.facts["products"]) == 4
    assert {tuple(one["ranges"]["m"]) for one in made.facts["products"]} == {(2, 64)}
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (2, 33, 64):
            given = pieces.inputs(SMALL, rows, "cpu")
            for found, wanted in zip(made.run(*given), piece(*given), strict=True):
                torch.testing.assert_close(found, wanted, atol=0.05, rtol=0.05)

    runs = pieces.beside(piece, 32, how)
    found = symbolic.hosts(runs, {rows: pieces.inputs(SMALL, rows, "cpu") for rows in (2, 33)})
    assert list(found) == ["2", "33"]
    assert all(set(one) == {"default", "gemmdb"} and min(one.values()) > 0 for one in found.values())


def test_the_configs_of_a_divided_range_are_those_at_each_size() -> None:
    parts = [{"m": [2, 4, 8], "config": "one"}, {"m": [16, 32], "config": "two"}]
    product = {"problem": "mm", "config": "two", "note": "", "evidence": {"kernels": parts}}
    assert pieces.configs({"products": [product]}, [2, 9, 32, 64]) == {"mm": ["one", "two", "two", "two"]}
