"""The folder that a `gemmdb tune` goes on from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemmdb.errors import InputError
from gemmdb.key.problem import Problem
from gemmdb.tune.state import STATE, WORKLOAD, TakenError, open_folder
from gemmdb.workload import entries


def test_what_was_done_is_found_again(tmp_path: Path):
    state = open_folder(tmp_path / "new", ("python", "a.py"), False)
    state.recorded, state.pace, state.run_s, state.gained = True, 2.5, 20.0, {"runs": 1}
    state.save()
    assert open_folder(tmp_path / "new", ["python", "a.py"], False) == state


def test_another_command_needs_another_folder(tmp_path: Path):
    open_folder(tmp_path, ("python", "a.py"), False)
    with pytest.raises(InputError, match=r"belongs to `python a\.py`"):
        open_folder(tmp_path, ("python", "b.py"), False)
    taken = tmp_path / "folder"
    for command, expected in (("a.py", "folder"), ("b.py", "folder-2"), ("c.py", "folder-3"), ("b.py", "folder-2")):
        folder = taken
        try:
            open_folder(folder, ("python", command), False)
        except TakenError as error:
            folder = error.other(("python", command))
            open_folder(folder, ("python", command), False)
        assert folder.name == expected
    assert open_folder(tmp_path, ("python", "b.py"), True).command == ("python", "b.py")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1, "command": 3}', "[" * 100_000])
def test_a_damaged_state(tmp_path: Path, text: str):
    (tmp_path / STATE).write_text(text)
    with pytest.raises(InputError, match="--fresh"):
        open_folder(tmp_path, ("true",), False)
    assert not open_folder(tmp_path, ("true",), True).recorded


@pytest.mark.parametrize("figure", ["NaN", "-1", "Infinity", '"fast"', "1e300"])
@pytest.mark.parametrize("name", ["pace", "run_s"])
def test_a_state_with_an_impossible_figure_is_damaged(tmp_path: Path, name: str, figure: str):
    open_folder(tmp_path, ("true",), False)
    known = json.loads((tmp_path / STATE).read_text())
    text = json.dumps({key: value for key, value in known.items() if key != name})
    (tmp_path / STATE).write_text(text.removesuffix("}") + f', "{name}": {figure}}}')
    with pytest.raises(InputError, match="--fresh"):
        open_folder(tmp_path, ("true",), False)
    (tmp_path / STATE).write_text(text)  # Of an older version.
    assert open_folder(tmp_path, ("true",), False).command == ("true",)


def test_a_folder_that_cannot_be_used(tmp_path: Path):
    (tmp_path / WORKLOAD).write_text("mine\n")
    for folder, said in ((tmp_path, "choose another"), (tmp_path / WORKLOAD, "cannot use the folder")):
        with pytest.raises(InputError, match=said):
            open_folder(folder, ("true",), False)
    assert (tmp_path / WORKLOAD).read_text() == "mine\n"


def test_a_program_that_has_changed_is_recorded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A user who has followed an advice runs the same command again."""
    pytest.importorskip("torch")
    from gemmdb.tune import tuning
    from gemmdb.tune.running import Recorded

    script, runs, said = tmp_path / "serve.py", [], []

    def run(command: tuple[str, ...], workload: Path, **_: object) -> Recorded:
        runs.append(command)
        problem = Problem.gemm("mm", m=4, n=64, k=64, dtype="fp32", constant_weight="freezing" in script.read_text())
        workload.write_text(entries.line("problem", problem.text) + "\n")
        return Recorded(0, 1, 1, ())

    def constant() -> bool:
        request = tuning.Request(("python", str(script)), tmp_path / "folder")
        (entry,) = tuning.Tuning(request, said.append).record().entries
        return entry.problem.constant

    monkeypatch.setattr(tuning, "run", run)
    script.write_text("import torch\n")
    assert [constant(), constant(), len(runs)] == [False, False, 1]
    assert said[-1].startswith("1/4 already recorded; --fresh records again")
    script.write_text("import torch\ntorch._inductor.config.freezing = True\n")
    assert [constant(), constant(), len(runs)] == [True, True, 2]
    assert "the program has changed: it is recorded again" in said
