"""Where products come from: bounded, and hostile when read back."""

import json

from hypothesis import given
from hypothesis import strategies as st

from gemmdb.key.problem import Problem
from gemmdb.workload import entries, origins
from gemmdb.workload.entries import Entry
from gemmdb.workload.origins import MAX_CHARACTERS, MAX_ORIGINS, Origin

PROBLEM = Problem.gemm("mm", m=1, n=8, k=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["module", "source", "x"]), inner
    ),
)  # fmt: skip


def test_places_are_added_up(tmp_path):
    path = tmp_path / "w.jsonl"
    up, down = Origin("layers.0.up", "model.py:12"), Origin("layers.0.down", "model.py:13")
    entries.append(path, [Entry(PROBLEM, 1, 0, origins=(up,)), Entry(PROBLEM, 0, 7)])
    entries.append(path, [Entry(PROBLEM, 2, 0, origins=(down, up))])
    (found,) = entries.read(path).entries
    assert (found.count, found.calls, found.origins) == (3, 7, (up, down))
    assert [str(one) for one in found.origins] == ["layers.0.up at model.py:12", "layers.0.down at model.py:13"]


def test_a_file_of_before_is_read(tmp_path):
    path = tmp_path / "w.jsonl"
    path.write_text(json.dumps({"problem": PROBLEM.text, "count": 1, "calls": 2, "device": "", "ranges": {}}))
    assert entries.read(path).entries == (Entry(PROBLEM, 1, 2),)
    assert "origins" not in Entry(PROBLEM).line


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
    found = origins.read(items)
    assert len(found) <= MAX_ORIGINS
    assert all(text.isprintable() and len(text) <= MAX_CHARACTERS for one in found for text in (one.module, one.source))
