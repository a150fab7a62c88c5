"""The sizes of calls in a workload: few, counted together, and checked, since files come from others."""

import json

import pytest

from gemmdb.errors import InputError
from gemmdb.key.problem import Problem
from gemmdb.workload import entries, seen
from gemmdb.workload.entries import Entry

PROBLEM = Problem.gemm("mm", m=8, n=16, k=32)
RANGES = (("k", 2, None), ("m", 2, 100))


def at(m: int, k: int = 32):
    return (("k", k), ("m", m))


@pytest.mark.parametrize(("size", "low", "high", "found"), [
    (1, 1, None, 1), (24, 1, None, 32), (22, 1, None, 16), (33, 1, None, 32), (100, 2, 100, 100), (1, 2, 100, 2),
    (5, 6, 7, 6),
])  # fmt: skip
def test_sizes_are_powers_of_two_within_their_range(size, low, high, found):
    assert seen.rounded(size, low, high) == found


def test_the_calls_of_a_problem_are_added_up_by_size(tmp_path):
    path = tmp_path / "w.jsonl"
    first = Entry(PROBLEM, 1, 0, "", RANGES, computed=True)
    second = Entry(PROBLEM, 0, 5, "", RANGES, seen=((at(8), 3), (at(64), 2)), computed=True)
    third = Entry(PROBLEM, 0, 4, "", RANGES, seen=((at(64), 4),), computed=True)
    entries.append(path, [first, second, third])
    assert json.loads(second.line)["seen"][0] == {"k": 32, "m": 8, "calls": 3}
    (found,) = entries.read(path).entries
    assert (found.calls, found.seen, found.computed) == (9, ((at(8), 3), (at(64), 6)), True)
    assert found.sizes() == {PROBLEM.resized(8, 16, 32): 1 / 3, PROBLEM.resized(64, 16, 32): 2 / 3}
    entries.append(path, [Entry(PROBLEM, 1, 0, "", RANGES)])
    assert not entries.read(path).entries[0].computed  # Elsewhere its operand is a weight.


def test_a_file_without_sizes_is_read_as_before(tmp_path):
    path = tmp_path / "w.jsonl"
    path.write_text(json.dumps({"problem": PROBLEM.text, "count": 1, "calls": 9, "ranges": {"m": [2, 64]}}))
    (found,) = entries.read(path).entries
    assert (found.seen, found.sizes(), found.computed) == ((), {}, False)
    assert not {"seen", "computed"} & json.loads(found.line).keys()


def test_no_more_sizes_are_kept_than_a_line_holds():
    found = seen.merged(((at(m), m) for m in range(1, 3 * seen.MAX_SEEN)), [(at(1), 10**6)])
    assert len(found) == seen.MAX_SEEN
    assert found[0] == (at(1), 10**6 + 1)


@pytest.mark.parametrize("items", [
    3, None, {}, [3], [{"calls": 1}], [{"m": 8, "calls": 1}], [{"m": 8, "k": 8, "n": 8, "calls": 1}],
    [{"m": 0, "k": 8, "calls": 1}], [{"m": 8, "k": 2**31, "calls": 1}], [{"m": True, "k": 8, "calls": 1}],
    [{"m": 8.5, "k": 8, "calls": 1}], [{"m": "8", "k": 8, "calls": 1}],
])  # fmt: skip
def test_sizes_of_a_wrong_form_are_refused(tmp_path, items):
    line = {"problem": PROBLEM.text, "ranges": {"m": [2, 100], "k": [2, None]}, "seen": items}
    (tmp_path / "w.jsonl").write_text(json.dumps(line))
    with pytest.raises(InputError, match=r'w.jsonl:1: seen must have the form \[{"k": size, "m": size, "calls": num'):
        entries.read(tmp_path / "w.jsonl")


@pytest.mark.parametrize("calls", [0, -1, 2**63, "1", 1.5, None])
def test_numbers_of_calls_are_checked(calls):
    with pytest.raises(InputError, match="calls of seen must be an integer"):
        seen.read([{"m": 8, "calls": calls}], ["m"], "w.jsonl:1")


def test_sizes_need_ranges():
    with pytest.raises(InputError, match="seen must have the form"):
        seen.read([{"calls": 1}], [], "w.jsonl:1")
