"""The kernels of a program in two ways, by the profiler."""

import json

import pytest

from benchmarks.programs import kernels
from benchmarks.programs.program import Program
from gemmdb.errors import InputError


def test_the_largest_changes_come_first():
    before = {"a": (1.0, 10.0), "b": (2.0, 8.0), "same": (1.0, 3.0)}
    after = {"b": (2.0, 5.0), "same": (1.0, 3.0), "c": (1.0, 4.0)}
    assert kernels.differing(before, after) == [(-10.0, "a"), (4.0, "c"), (-3.0, "b"), (0.0, "same")]
    assert (kernels.total(before), kernels.total(after)) == (21.0, 12.0)


def test_a_program_is_profiled_in_both_ways(tmp_path, monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    from benchmarks.programs.building import noise, of_model

    def make(size, device):
        torch.manual_seed(0)
        return of_model(torch.nn.Linear(32, 48).bfloat16(), {"input": noise(4, 32, device=device)})

    monkeypatch.setattr(kernels, "suite", lambda source: {"linear": Program("linear", "bf16", make)})
    out = tmp_path / "kernels.jsonl"
    options = {"source": "", "program": "linear", "way": "gemmdb-aten", "size": "tiny", "device": "cpu", "out": out}
    kernels.main(type("Options", (), options))
    row = json.loads(out.read_text())
    assert set(row["kernels"]) == {"default", "gemmdb-aten"}
    for taken in row["kernels"].values():
        assert any("addmm" in name for name in taken)
        assert all(us > 0 for _, us in taken.values())
    assert capsys.readouterr().out.startswith("linear: ")


def test_an_unknown_program_is_named():
    with pytest.raises(InputError, match="no program nosuch"):
        kernels.main(type("Options", (), {"program": "nosuch", "source": "", "way": "gemmdb", "out": None}))
