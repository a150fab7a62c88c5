"""Merge is set union, on real files; compaction leaves every verdict as it is."""

from __future__ import annotations

import multiprocessing
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemmdb import InputError, TableError
from gemmdb.generators.files.diff import diff
from gemmdb.generators.files.merge import merge
from gemmdb.generators.files.verify import verify
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

few = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@few
@given(data=st.data())
def test_merge_is_commutative_associative_and_idempotent(kit, data):
    parts = [data.draw(kit.rows(12)) for _ in "abc"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        a, b, c = (kit.write(folder / f"{x}.db", rows) for x, rows in zip("abc", parts, strict=True))
        merged = {}
        for label, inputs in {"abc": (a, b, c), "cba": (c, b, a), "aab": (a, a, b), "ab": (a, b)}.items():
            merged[label] = folder / f"merged-{label}.db"
            merge(inputs, merged[label])
        merge([b, c], folder / "bc.db")
        merge([a, folder / "bc.db"], folder / "a-bc.db")
        merge([merged["abc"], a], merged["abc"])
        whole = kit.content(merged["abc"])
        assert kit.content(merged["cba"]) == whole
        assert kit.content(folder / "a-bc.db") == whole
        assert kit.content(merged["aab"]) == kit.content(merged["ab"])
        assert verify(merged["abc"]) == []
        assert set(whole[1]) == {row for rows in parts for row in rows}


def test_runs_and_figures_are_united(kit, tmp_path):
    for name, provenance in (("a", {"command": "one"}), ("b", {"command": "two"})):
        with Store.open(tmp_path / f"{name}.db") as store:
            run = store.begin_run(provenance)
            store.add([kit.row(run=run)])
    merge([tmp_path / "a.db", tmp_path / "b.db"], tmp_path / "c.db")
    with Table.open(tmp_path / "c.db") as table:
        assert {entry["command"] for entry in table.provenance()} == {"one", "two"}
        assert table.devices()[0].figures == {"copy_gb_per_s": 20.5}


def test_the_generation_of_a_merge_is_above_its_inputs(kit, tmp_path):
    path = kit.write(tmp_path / "a.db", [kit.row()])
    kit.write(path, [kit.row(run="run-2")])
    before = Table.open(path).generation
    merge([path, kit.write(tmp_path / "b.db", [])], path)
    assert Table.open(path).generation == before + 1


def test_a_failed_merge_leaves_the_output_as_it_was(kit, tmp_path):
    out = kit.write(tmp_path / "out.db", [kit.row()])
    (tmp_path / "broken.db").write_bytes(out.read_bytes()[:-4096])
    before = out.read_bytes()
    with pytest.raises(TableError, match=r"broken\.db"):
        merge([out, tmp_path / "broken.db"], out)
    assert out.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["broken.db", "out.db"]


def test_a_file_that_is_no_table_is_not_overwritten(kit, tmp_path):
    path = kit.write(tmp_path / "a.db", [kit.row()])
    (tmp_path / "notes.txt").write_text("do not lose me")
    with pytest.raises(TableError, match=r"notes\.txt is not a SQLite file"):
        merge([path], tmp_path / "notes.txt")
    with pytest.raises(InputError, match="nothing to merge"):
        merge([], tmp_path / "c.db")
    with pytest.raises(InputError, match="is not a folder"):
        merge([path], tmp_path / "missing" / "c.db")
    assert (tmp_path / "notes.txt").read_text() == "do not lose me"


def _keep_adding(kit, path, barrier, count):
    with Store.open(path) as store:
        barrier.wait()
        for i in range(count):
            store.add([kit.row(run=f"other-{i}")])


def test_a_writer_at_work_loses_nothing_to_a_merge_over_its_file(kit, tmp_path):
    path = kit.write(tmp_path / "a.db", [kit.row()])
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    writer = context.Process(target=_keep_adding, args=(kit, path, barrier, 40))
    writer.start()
    barrier.wait()
    other = kit.write(tmp_path / "b.db", [kit.row(kit.configs[1])])
    for _ in range(3):
        merge([path, other], path)
    writer.join()
    assert writer.exitcode == 0
    assert len(list(Table.open(path).measurements())) == 42


def test_diff_names_problems_rows_and_changed_verdicts(kit, tmp_path):
    shared = [kit.row(), kit.row(kit.configs[1], 5.0)]
    a = kit.write(tmp_path / "a.db", [*shared, kit.row(problem=kit.problems[1])])
    b = kit.write(tmp_path / "b.db", [*shared, kit.row(kit.configs[2], 4.0), kit.row(problem=kit.problems[2])])
    found = diff(a, b)
    assert bool(found)
    assert found.only_a == ((kit.problems[1].text, kit.device.text),)
    assert found.only_b == ((kit.problems[2].text, kit.device.text),)
    assert (found.rows_a, found.rows_b) == (1, 2)
    (change,) = found.changed
    assert (change.before, change.after) == (kit.configs[1].text, kit.configs[2].text)
    assert (change.speedup_before, change.speedup_after, change.held) == (2.0, 2.5, False)
    assert not diff(a, a)
    assert found.as_dict()["changed"][0]["speedup_after"] == 2.5


def test_diff_names_verdicts_that_one_table_alone_can_make(kit, tmp_path):
    a = kit.write(tmp_path / "a.db", [kit.row(kit.configs[1])])
    b = kit.write(tmp_path / "b.db", [kit.row(kit.configs[1]), kit.row()])
    assert diff(a, b).decided_b == ((kit.problem.text, kit.device.text, kit.cold.text, "cpu-torch2.13"),)
