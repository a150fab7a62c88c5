"""`gemmdb explain` and `gemmdb show` say what was timed only while other programs kept the machine busy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from kit.tables import Kit

from gemmdb.table.measurement import marks

KIT = Kit()
ATEN, FAST, OTHER = KIT.configs[:3]


def loaded(row):
    return replace(row, detail=marks(False, True))


@pytest.fixture
def busy(environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table with a problem of which some times were taken under load, and one that was not disturbed."""
    path = tmp_path / "busy.db"
    quiet = KIT.problems[1]
    rows = [KIT.row(), loaded(KIT.row(ATEN, run="b")), loaded(KIT.row(FAST, 5.0)), KIT.row(OTHER, 8.0)]
    KIT.write(path, [*rows, KIT.row(problem=quiet), KIT.row(FAST, 5.0, problem=quiet)])
    monkeypatch.setenv("GEMMDB_TABLES", str(path))
    return path


def explain(gemmdb, problem, *more: str):
    return gemmdb("explain", problem.text, "--device", KIT.device.sku, *more)


def test_explain_counts_what_was_timed_under_load_only(gemmdb, busy: Path) -> None:
    text = explain(gemmdb, KIT.problem).out
    (line,) = [line for line in text.splitlines() if "under load" in line]
    assert line.endswith("1 of 2 kernels in busy.db, which cannot win: build again when the machine is quiet")
    (found,) = json.loads(explain(gemmdb, KIT.problem, "--json").out)["under_load"]
    assert found == {"table": "busy.db", "configs": [FAST.text], "timed": 3}
    assert "under load" not in explain(gemmdb, KIT.problems[1]).out
    assert json.loads(explain(gemmdb, KIT.problems[1], "--json").out)["under_load"] == []


def test_explain_says_that_aten_was_timed_under_load_only(gemmdb, environment, tmp_path, monkeypatch) -> None:
    path = KIT.write(tmp_path / "aten.db", [loaded(KIT.row())])
    monkeypatch.setenv("GEMMDB_TABLES", str(path))
    assert "ATen in aten.db: build again" in explain(gemmdb, KIT.problem).out


@pytest.mark.parametrize(("row", "gain"), [(KIT.row(FAST, 5.0), ", 2.00x ATen"), (KIT.row(), "")])
def test_no_command_quotes_a_disturbed_time_as_expected(gemmdb, environment, tmp_path, monkeypatch, row, gain) -> None:
    """ATen was timed only under load: 16,029 us was expected for 4 x 48 x 64. The ratio of a kernel holds."""
    aten = loaded(KIT.row(ATEN, 16029.0))
    path = KIT.write(tmp_path / "t.db", [aten] if row.config == ATEN else [aten, row])
    monkeypatch.setenv("GEMMDB_TABLES", str(path))
    unknown = "unknown, timed only while other programs kept the machine busy"
    flags = (KIT.problem.text, "--device", KIT.device.sku)
    (line,) = [line for line in gemmdb("lookup", *flags).out.splitlines() if line.startswith("expected")]
    assert line.split(None, 1)[1] == unknown + gain
    assert json.loads(gemmdb("lookup", *flags, "--json").out)["expected_us"] is None
    text = gemmdb("explain", *flags).out
    assert unknown in text
    steps = json.loads(gemmdb("explain", *flags, "--json").out)["steps"]
    assert [step["hit"]["expected_us"] for step in steps if step["rung"] == "exact"] == [None]
    assert "16.03 ms" not in gemmdb("lookup", *flags, "--wide").out + gemmdb("explain", *flags, "--wide").out


def test_no_command_calls_aten_the_best_by_disturbed_times(gemmdb, environment, tmp_path, monkeypatch) -> None:
    path = KIT.write(tmp_path / "t.db", [loaded(KIT.row()), loaded(KIT.row(FAST, 5.0))])
    monkeypatch.setenv("GEMMDB_TABLES", str(path))
    Path("w.jsonl").write_text(
        json.dumps({"problem": KIT.problem.text, "count": 1, "calls": 9, "device": KIT.device.text}) + "\n"
    )
    flags = (KIT.problem.text, "--device", KIT.device.sku)
    said = [gemmdb("lookup", *flags).out, gemmdb("explain", *flags).out, gemmdb("coverage", "w.jsonl").out]
    assert ["ATen (nothing known)" in text for text in said] == [True] * 3
    assert not any("measured best" in text or "nothing to do" in text for text in said)
    assert "exact: measured in 1 run, but timed only while other programs kept the machine busy" in said[1]
    (step,) = [line for line in said[2].splitlines() if line.startswith("next")]
    assert step == (
        "next  the timings were disturbed by other programs and are not used; run again when the machine is idle:"
        " gemmdb build --arch native --shapes w.jsonl"
    )
    documents = [json.loads(gemmdb(name, *flags, "--json").out) for name in ("lookup", "explain")]
    assert {one["outcome"] for one in documents} == {"ATen (nothing known)"}


def test_a_packed_table_says_the_same(gemmdb, busy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = explain(gemmdb, KIT.problem, "--json").out, gemmdb("show", str(busy)).out
    packed = tmp_path / "packed" / busy.name
    packed.parent.mkdir()
    assert gemmdb("tables", "pack", str(busy), "--out", str(packed)).code == 0
    monkeypatch.setenv("GEMMDB_TABLES", str(packed))
    after = explain(gemmdb, KIT.problem, "--json").out, gemmdb("show", str(packed)).out
    assert json.loads(after[0])["under_load"] == json.loads(before[0])["under_load"]
    assert after[1] == before[1]


def test_show_counts_what_under_load(gemmdb, busy: Path) -> None:
    done = gemmdb("show", str(busy))
    titles, *rows, _ = done.out.splitlines()
    assert titles.endswith("under load")
    assert [row.endswith(" 1 of 3") for row in rows] == [" 16x512x512" in row for row in rows]
    assert "1 problem has kernels that were timed only under load" in done.err
    found = {
        one["problem"]: one["under_load"] for one in json.loads(gemmdb("show", str(busy), "--json").out)["verdicts"]
    }
    assert found[KIT.problem.text] == {"marked": 1, "timed": 3}
    assert found[KIT.problems[1].text] == {"marked": 0, "timed": 0}
    quiet = gemmdb("show", str(busy), "m=32")
    assert "under load" not in quiet.out + quiet.err
