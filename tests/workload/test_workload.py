"""Workload files: written by many processes, read with their lines counted; and origins, bounded and hostile."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdb.errors import InputError
from gemmdb.key.problem import Problem
from gemmdb.workload import entries
from gemmdb.workload.entries import MAX_CHARACTERS, MAX_ORIGINS, Entry, Origin

PROBLEM = Problem.gemm("mm", m=1, n=8, k=8)
OTHER = Problem.gemm("mm", m=2, n=8, k=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["module", "source", "x"]), inner
    ),
)  # fmt: skip


def test_round_trip_and_merge(tmp_path):
    path = tmp_path / "workload.jsonl"
    ranged = Entry(PROBLEM, 1, 1, "", (("m", 2, None),))
    entries.append(path, [Entry(PROBLEM, 2, 10, "cpu"), Entry(OTHER, 1, 5), ranged])
    entries.append(path, [Entry(PROBLEM, 3, 7, "cpu")])
    assert entries.read(path).entries == (Entry(PROBLEM, 5, 17, "cpu"), Entry(OTHER, 1, 5), ranged)


def test_unknown_fields_and_defaults(tmp_path):
    path = tmp_path / "workload.jsonl"
    path.write_text(json.dumps({"problem": PROBLEM.text, "new": [1]}) + "\n\n")
    assert entries.read(path).entries == (Entry(PROBLEM, 1, 0),)
    assert "origins" not in Entry(PROBLEM).line


def test_what_is_not_steered_is_counted_by_name(tmp_path):
    path = tmp_path / "workload.jsonl"
    path.write_text('{"uncovered": "bmm", "count": 2, "calls": 4}\n{"uncovered": "bmm", "count": 1, "calls": 1}\n')
    assert entries.read(path) == entries.Workload((), {"bmm": (3, 5)})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "a line must be a JSON object"),
        ("nonsense", "not JSON"),
        ('{"count": 1}', 'needs a "problem"'),
        ('{"problem": 3}', 'needs a "problem"'),
        ('{"problem": "mm"}', "malformed problem"),
        (json.dumps({"problem": PROBLEM.text, "count": -1}), "count must be an integer of at least 0"),
        (json.dumps({"problem": PROBLEM.text, "calls": 1.5}), "calls must be an integer of at least 0"),
        (json.dumps({"problem": PROBLEM.text, "ranges": {"x": [1, 2]}}), "ranges must have the form"),
        (json.dumps({"problem": PROBLEM.text, "ranges": {"m": [1]}}), "ranges must have the form"),
        (json.dumps({"problem": PROBLEM.text, "ranges": 3}), "ranges must have the form"),
        (json.dumps({"problem": PROBLEM.text, "ranges": {"m": [64, 1]}}), "no such range: m from 64 to 1"),
        (json.dumps({"problem": PROBLEM.text, "ranges": {"m": [-1, None]}}), "no such range: m from -1 to None"),
    ],
)
def test_bad_lines(tmp_path, line, message):
    path = tmp_path / "workload.jsonl"
    path.write_text(json.dumps({"problem": PROBLEM.text}) + "\n" + line)
    with pytest.raises(InputError, match=f"workload.jsonl:2: .*{message}"):
        entries.read(path)


def test_what_an_editor_adds_does_not_matter(tmp_path):
    path = tmp_path / "workload.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + f"{Entry(PROBLEM, 2).line}\r\n\r\n".encode())
    assert entries.read(path).entries == (Entry(PROBLEM, 2),)


def test_a_file_beyond_all_bounds_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "w.jsonl"
    entries.append(path, [entries.Entry(Problem.gemm("mm", m=1, n=2, k=3))])
    monkeypatch.setattr(entries, "MAX_BYTES", path.stat().st_size - 1)
    with pytest.raises(InputError, match="larger than"):
        entries.read(path)


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/fd leads to the pipe itself")
def test_a_pipe_is_read_once():
    ours, theirs = os.pipe()
    os.write(theirs, f"{Entry(PROBLEM, 2).line}\n{Entry(OTHER).line}\n".encode())
    os.close(theirs)
    try:
        assert entries.read(Path(f"/dev/fd/{ours}")).entries == (Entry(PROBLEM, 2), Entry(OTHER))
    finally:
        os.close(ours)


def test_missing_file_and_unwritable_file(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        entries.read(tmp_path / "missing.jsonl")
    with pytest.raises(InputError, match="cannot write"):
        entries.append(tmp_path / "missing" / "workload.jsonl", [Entry(PROBLEM)])


def test_concurrent_writers_lose_nothing(tmp_path):
    path = tmp_path / "workload.jsonl"
    script = (
        "import sys; from pathlib import Path; from gemmdb.workload.entries import *;"
        f"e = Entry(Problem.parse({PROBLEM.text!r})); [append(Path(sys.argv[1]), [e] * 20) for _ in range(20)]"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, str(path)]) for _ in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert entries.read(path).entries == (Entry(PROBLEM, 1200, 0),)


def test_a_file_of_more_gemms_than_anybody_can_look_up_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(entries, "MAX_ENTRIES", 20)
    path = tmp_path / "w.jsonl"
    names = [json.dumps({"uncovered": f"op{i}"}) for i in range(10)]
    sizes = [entries.Entry(Problem.gemm("mm", m=m, n=8, k=8)).line for m in range(1, 12)]
    path.write_text("\n".join([*names, *sizes[:10], *sizes[:10]]))
    assert len(entries.read(path).entries) == 10
    for last in (sizes[10], json.dumps({"uncovered": "another"})):
        path.write_text("\n".join([*names, *sizes[:10], last]))
        with pytest.raises(InputError, match=r"w\.jsonl:21: more than 20 distinct problems"):
            entries.read(path)


def test_places_are_added_up(tmp_path):
    path = tmp_path / "w.jsonl"
    up, down = Origin("layers.0.up", "model.py:12"), Origin("layers.0.down", "model.py:13")
    entries.append(path, [Entry(PROBLEM, 1, 0, origins=(up,)), Entry(PROBLEM, 0, 7)])
    entries.append(path, [Entry(PROBLEM, 2, 0, origins=(down, up))])
    (found,) = entries.read(path).entries
    assert (found.count, found.calls, found.origins) == (3, 7, (up, down))
    assert [str(one) for one in found.origins] == ["layers.0.up at model.py:12", "layers.0.down at model.py:13"]


def test_there_are_few(tmp_path):
    path = tmp_path / "w.jsonl"
    entries.append(path, (Entry(PROBLEM, origins=(Origin(f"layers.{i}"),)) for i in range(100)))
    (found,) = entries.read(path).entries
    assert [one.module for one in found.origins] == [f"layers.{i}" for i in range(MAX_ORIGINS)]


def test_a_terminal_is_not_steered(tmp_path):
    path = tmp_path / "w.jsonl"
    item = {"problem": PROBLEM.text, "origins": [{"module": "a\x1b[31m\n\u202eb", "source": "x" * 9999 + ".py:1"}]}
    path.write_text(json.dumps(item))
    (found,) = entries.read(path).entries[0].origins
    assert found.module == "a?[31m??b"
    assert found.source.startswith("...xxx")
    assert found.source.endswith("xx.py:1")
    assert len(found.source) == MAX_CHARACTERS


@given(JSON)
def test_anything_may_be_in_a_file(items):
    found = entries.read_origins(items)
    assert len(found) <= MAX_ORIGINS
    assert all(text.isprintable() and len(text) <= MAX_CHARACTERS for one in found for text in (one.module, one.source))
