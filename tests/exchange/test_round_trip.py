"""CSV, JSON Lines and Parquet: what is exported is imported to the last bit, and bad input is refused by line."""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.strategies import measurements
from kit.tables import Kit

from gemmdb.errors import InputError, TableError
from gemmdb.exchange import flat, text_formats
from gemmdb.exchange.formats import FORMATS, export, load
from gemmdb.key.device import Device
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

KIT = Kit()
OWN = [name for name, one in FORMATS.items() if one.read]


def there_and_back(kind: str, rows, folder: Path, runs=()) -> tuple[Table, Table]:
    """The table of the rows, and the one that comes back from a file of that format."""
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    with Store.open(folder / "a.db") as store:
        store.add(rows)
        store.add_runs(runs)
        store.refresh()
    sent = export(folder / "a.db", folder / "rows", kind)
    back = load(folder / "rows", folder / "b.db", kind)
    assert sent.carried == back.carried == back.total == len({row.key for row in rows})
    return Table.open(folder / "a.db"), Table.open(folder / "b.db")


@pytest.mark.parametrize("kind", OWN)
@settings(max_examples=25, suppress_health_check=list(HealthCheck))  # The strategies of texts filter much.
@given(rows=st.lists(measurements, max_size=3) | KIT.rows(12))
def test_measurements_verdicts_and_figures_survive(kind, rows):
    with tempfile.TemporaryDirectory() as folder:
        before, after = there_and_back(kind, rows, Path(folder))
        with before, after:
            assert after.digest == before.digest
            assert list(after.measurements()) == list(before.measurements())
            for row in rows:
                assert after.verdicts(row.problem, row.device) == before.verdicts(row.problem, row.device)
            assert [d.figures for d in after.devices()] == [d.figures for d in before.devices()]


def test_aten_on_a_device_that_no_kernel_of_ours_runs_on_has_a_verdict(tmp_path):
    """Hypothesis found it."""
    row = KIT.row(device=Device("hip", "a0", "0", 1, 0, False, "-"))
    before, after = there_and_back("jsonl", [row], tmp_path)
    assert after.verdicts(row.problem, row.device) == before.verdicts(row.problem, row.device) != []


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_what_the_runs_recorded_survives(kind, tmp_path):
    runs = [{"run": "run-1", "command": "gemmdb build", "readings": [1.5, None, {"a": "ü\n"}]}]
    before, after = there_and_back(kind, [KIT.row()], tmp_path, runs)
    assert after.provenance() == before.provenance()
    assert after.provenance()[0]["readings"] == [1.5, None, {"a": "ü\n"}]


def test_csv_says_that_runs_are_left(tmp_path):
    a = KIT.write(tmp_path / "a.db", [KIT.row(), KIT.row(run="run-2")])
    (left,) = export(a, tmp_path / "a.csv", "csv").left
    assert (left.count, left.examples) == (2, ("run-1", "run-2"))


def test_rows_are_added_to_a_table(tmp_path):
    a = KIT.write(tmp_path / "a.db", [KIT.row()])
    b = KIT.write(tmp_path / "b.db", [KIT.row(run="run-2")])
    export(a, tmp_path / "a.jsonl", "jsonl")
    found = load(tmp_path / "a.jsonl", b, "jsonl")
    assert (found.carried, found.total) == (1, 2)
    with Table.open(b) as table:
        assert {row.run for row in table.measurements()} == {"run-1", "run-2"}
        assert table.generation == 2


BAD_CELLS = {
    "median_us": ["1_0.0", "nan", "-1.0", "1e999", "0x10", " 1.0", "inf", "1" * 400],
    "samples": ["1.0", "0", "9" * 30, "true"],
    "status": ["fine", ""],
    "m": ["17", "1e3"],
    "kernel": ["triton:tile"],
    "config": ["aten:default x=1", "__import__('os')", "triton:nothing"],
    "problem": ["mm m=1", "mm m=-1 n=1 k=1"],
    "device": ["device kind=cpu"],
    "figures": ["{", "[]", '{"a": 1e999}', '{"A B": 1}'],
    "protocol": ["protocol clock=sun"],
    "toolchain": ["toolchain"],
    "run": ["", "a b", "x" * 65],
    "detail": ["two\nlines", "x" * 301],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in BAD_CELLS for value in BAD_CELLS[name]])
def test_a_bad_cell_is_refused_with_its_line(tmp_path, name, value):
    export(KIT.write(tmp_path / "a.db", [KIT.row()]), tmp_path / "a.csv", "csv")
    with (tmp_path / "a.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    with (tmp_path / "bad.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(flat.COLUMNS))
        writer.writeheader()
        writer.writerows([found[0], found[0] | {name: value}])
    last = 4 if "\n" in value else 3
    with pytest.raises(InputError, match=rf"bad\.csv:{last}: ") as error:
        load(tmp_path / "bad.csv", tmp_path / "b.db", "csv")
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.db", "bad.csv"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ":1: not a gemmdb JSON Lines export"),
        ("{}\n", ":1: not a gemmdb JSON Lines export"),
        ('{"gemmdb_rows": 2, "runs": []}\n', ":1: not a gemmdb JSON Lines export"),
        ('{"gemmdb_rows": 1, "runs": [1]}\n', ":1: a run without"),
        ('{"gemmdb_rows": 1, "runs": []}\n{}\n', ":2: not an object"),
        ('{"gemmdb_rows": 1, "runs": []}\n{"a"\n', ":2: not JSON"),
        ('{"gemmdb_rows": 1, "runs": []}\n' + "[" * 100_000, "not usable JSON"),
        ('{"gemmdb_rows": 1, "runs": []}\n' + "9" * 10_000, "not usable JSON"),
        ('{"gemmdb_rows": 1, "runs": []}\n' + " " * 2**21, ":2: a line of more than"),
    ],
)
def test_bad_json_lines_are_refused_with_their_line(tmp_path, text, said):
    (tmp_path / "bad.jsonl").write_text(text)
    with pytest.raises(InputError, match=r"bad\.jsonl") as error:
        load(tmp_path / "bad.jsonl", tmp_path / "b.db", "jsonl")
    assert said in str(error.value)
    assert not (tmp_path / "b.db").exists()


def test_values_of_other_types_are_refused(tmp_path):
    export(KIT.write(tmp_path / "a.db", [KIT.row()]), tmp_path / "a.jsonl", "jsonl")
    head, line = (tmp_path / "a.jsonl").read_text().splitlines()
    for name in flat.COLUMNS:
        for value in (True, [], {"a": 1}, 2**70, float("nan")):
            (tmp_path / "bad.jsonl").write_text(f"{head}\n{json.dumps(json.loads(line) | {name: value})}\n")
            with pytest.raises(InputError, match=r"bad\.jsonl:2: "):
                load(tmp_path / "bad.jsonl", tmp_path / "b.db", "jsonl")


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "bad").write_bytes(b"op,m\n\xff\xfe")
    with pytest.raises(InputError, match=r"bad:\d"):
        load(tmp_path / "bad", tmp_path / "b.db", "csv")


@pytest.mark.parametrize("damage", ["truncated", "other columns", "null"])
def test_bad_parquet_is_refused(tmp_path, damage):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "a.pq"
    export(KIT.write(tmp_path / "a.db", [KIT.row()]), path, "parquet")
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-40])
    elif damage == "other columns":
        pq.write_table(pa.table({"op": ["mm"]}), path)
    else:
        table = pq.read_table(path)
        pq.write_table(pa.Table.from_pylist([table.to_pylist()[0] | {"samples": 0}], schema=table.schema), path)
    with pytest.raises(InputError, match=r"a\.pq"):
        load(path, tmp_path / "b.db", "parquet")
    assert not (tmp_path / "b.db").exists()


def test_a_failed_import_leaves_the_table_as_it_was(tmp_path):
    b = KIT.write(tmp_path / "b.db", [KIT.row()])
    before = b.read_bytes()
    (tmp_path / "bad.csv").write_text("op\n")
    with pytest.raises(InputError):
        load(tmp_path / "bad.csv", b, "csv")
    assert b.read_bytes() == before
    (tmp_path / "not.db").write_text("mine")
    export(b, tmp_path / "a.csv", "csv")
    with pytest.raises(TableError):
        load(tmp_path / "a.csv", tmp_path / "not.db", "csv")
    assert (tmp_path / "not.db").read_text() == "mine"


def test_an_export_never_replaces_its_table(tmp_path):
    a = KIT.write(tmp_path / "a.db", [KIT.row()])
    with pytest.raises(InputError, match="is the table itself"):
        export(a, a, "csv")


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "'=1", "''", "=", "a=1"])
@pytest.mark.parametrize("to", ["csv", "verdicts"])
def test_no_text_is_a_formula_to_a_spreadsheet(tmp_path, text, to):
    device = Device("cpu", "cpu", text, 2)
    before = KIT.write(tmp_path / "a.db", [KIT.row(device=device, detail=text)])
    export(before, tmp_path / "a.csv", to)
    with (tmp_path / "a.csv").open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]
    if to == "csv":
        load(tmp_path / "a.csv", tmp_path / "b.db", "csv")
        with Table.open(before) as one, Table.open(tmp_path / "b.db") as other:
            assert list(one.measurements()) == list(other.measurements())


def test_verdicts_are_one_row_per_problem(tmp_path):
    fast = KIT.configs[1]
    rows = [KIT.row(), KIT.row(fast, us=5.0), KIT.row(problem=KIT.problems[1]), KIT.row(fast, problem=KIT.problems[2])]
    found = export(KIT.write(tmp_path / "a.db", rows), tmp_path / "v.csv", "verdicts")
    with (tmp_path / "v.csv").open(newline="") as file:
        cells = {int(row["m"]): row for row in csv.DictReader(file)}
    assert (found.carried, sorted(cells)) == (2, [16, 32]), "without a time of ATen there is no verdict"
    assert (cells[16]["kernel"], cells[16]["speedup"], cells[16]["aten_us"]) == (fast.name, "2.0", "10.0")
    assert (cells[32]["kernel"], cells[32]["speedup"], cells[32]["origin"]) == ("aten:default", "1.0", "measured")
    assert cells[16]["problem"] == KIT.problem.text


@pytest.mark.parametrize("to", ["verdicts", "lookup-table"])
def test_problems_without_a_verdict_of_cold_operands_are_counted_and_named(tmp_path, to):
    cold, hot, none = KIT.problems
    fast = KIT.configs[1]
    rows = [KIT.row(problem=cold), KIT.row(problem=hot, protocol=KIT.hot), KIT.row(fast, problem=none)]
    found = export(KIT.write(tmp_path / "a.db", rows), tmp_path / "out", to)
    left = {one.reason: (one.count, one.examples) for one in found.left}
    assert left[text_formats.HOT] == (1, (f"{hot.text} on {KIT.device.sku}",))
    assert left[text_formats.UNDECIDED] == (1, (f"{none.text} on {KIT.device.sku}",))
