"""The folder that a `gemmdb tune` goes on from."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmdb.errors import InputError
from gemmdb.tune.tuning import STATE, WORKLOAD, open_folder


def test_what_was_done_is_found_again(tmp_path: Path):
    state = open_folder(tmp_path / "new", ("python", "a.py"), False)
    state.recorded, state.pace, state.gained = True, 2.5, {"runs": 1}
    state.save()
    assert open_folder(tmp_path / "new", ["python", "a.py"], False) == state


def test_another_command_needs_another_folder(tmp_path: Path):
    open_folder(tmp_path, ("python", "a.py"), False)
    with pytest.raises(InputError, match=r"belongs to `python a\.py`"):
        open_folder(tmp_path, ("python", "b.py"), False)
    assert open_folder(tmp_path, ("python", "b.py"), True).command == ("python", "b.py")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1, "command": 3}', "[" * 100_000])
def test_a_damaged_state(tmp_path: Path, text: str):
    (tmp_path / STATE).write_text(text)
    with pytest.raises(InputError, match="--fresh"):
        open_folder(tmp_path, ("true",), False)
    assert not open_folder(tmp_path, ("true",), True).recorded


def test_a_folder_that_cannot_be_used(tmp_path: Path):
    (tmp_path / WORKLOAD).write_text("mine\n")
    for folder, said in ((tmp_path, "choose another"), (tmp_path / WORKLOAD, "cannot use the folder")):
        with pytest.raises(InputError, match=said):
            open_folder(folder, ("true",), False)
    assert (tmp_path / WORKLOAD).read_text() == "mine\n"
