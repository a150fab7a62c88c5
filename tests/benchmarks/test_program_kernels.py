"""The kernels of a program in two ways, by the profiler."""

import json
from argparse import Namespace

import pytest

from benchmarks.programs import kernels
from benchmarks.programs.program import Program
from gemmdb.errors import InputError


def linear(size, device):
    import torch

    from benchmarks.programs.building import noise, of_model

    torch.manual_seed(0)
    return of_model(torch.nn.Linear(32, 48).bfloat16(), {"input": noise(4, 32, device=device)})


def test_the_largest_changes_come_first():
    before = {"a": (1.0, 10.0), "b": (2.0, 8.0), "same": (1.0, 3.0)}
    after = {"b": (2.0, 5.0), "same": (1.0, 3.0), "c": (1.0, 4.0)}
    assert kernels.differing(before, after) == [(-10.0, "a"), (4.0, "c"), (-3.0, "b"), (0.0, "same")]
    assert (kernels.total(before), kernels.total(after)) == (21.0, 12.0)


def test_a_program_is_profiled_in_both_ways(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.setattr(kernels, "suite", lambda source: {"linear": Program("linear", "bf16", linear)})
    out = tmp_path / "kernels.jsonl"
    options = {"source": "", "program": "linear", "way": "gemmdb-aten", "size": "tiny", "device": "cpu", "out": out}
    kernels.main(Namespace(**options, without=None))
    row = json.loads(out.read_text())
    assert set(row["kernels"]) == {"default", "gemmdb-aten"}
    for taken in row["kernels"].values():
        assert any("addmm" in name for name in taken)
        assert all(us > 0 for _, us in taken.values())
    assert capsys.readouterr().out.startswith("linear: ")


def test_an_unknown_program_is_named():
    with pytest.raises(InputError, match="no program nosuch"):
        kernels.main(Namespace(program="nosuch", source="", way="gemmdb", out=None, without=None))


def test_a_way_without_gemmdb_has_no_problem_to_spare(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(kernels, "suite", lambda source: {"linear": Program("linear", "bf16", linear)})
    options = {"source": "", "program": "linear", "way": "default", "size": "tiny", "device": "cpu", "out": None}
    with pytest.raises(InputError, match="--without needs a way with gemmdb"):
        kernels.main(Namespace(**options, without="mm"))


def test_a_way_is_compared_with_itself_without_a_kernel(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(kernels, "suite", lambda source: {"linear": Program("linear", "bf16", linear)})
    out = tmp_path / "kernels.jsonl"
    options = {"source": "", "program": "linear", "way": "gemmdb", "size": "tiny", "device": "cpu", "out": out}
    kernels.main(Namespace(**options, without="addmm m=4"))
    row = json.loads(out.read_text())
    assert set(row["kernels"]) == {"gemmdb", "gemmdb with ATen for addmm m=4"}
