"""Files that a command writes as a whole."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path

import pytest

from gemmdb.errors import InputError
from gemmdb.files import check_target, remedy, replacing


def write(out: Path, text: str) -> None:
    with replacing(out) as part:
        part.write_text(text)


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path):
    out = tmp_path / "out.csv"
    write(out, "first")
    with contextlib.suppress(ZeroDivisionError), replacing(out) as part:
        part.write_text("half")
        raise ZeroDivisionError
    assert out.read_text() == "first"
    assert list(tmp_path.iterdir()) == [out]


def test_a_link_stays_a_link(tmp_path: Path):
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    real.write_text("old")
    link.symlink_to(real)
    write(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    write(pipe, "through")
    reader.join()
    assert found == ["through"]
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_path_that_cannot_become_a_file_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    there, link, lost, pipe = tmp_path / "there", tmp_path / "link", tmp_path / "lost", tmp_path / "pipe"
    there.mkdir()
    (there / "old").write_text("old")
    link.symlink_to(there / "old")
    lost.symlink_to(tmp_path / "no folder" / "new")
    os.mkfifo(pipe)
    check_target(link)
    with pytest.raises(InputError, match="no folder is not a folder"):
        check_target(lost)
    locked = {there}
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) not in locked)  # Modes do not stop root.
    for one in (link, there / "old", there / "new"):
        with pytest.raises(InputError, match="cannot be written"):
            check_target(one)
    locked.add(tmp_path)
    check_target(pipe)  # It is written, not replaced.
    locked.add(pipe)
    with pytest.raises(InputError, match="cannot be written"):
        check_target(pipe)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.ENOENT, "its folder"),
        (errno.EACCES, "permissions"),
        (errno.EIO, "name"),
    ],
)
def test_a_failure_says_what_to_do(tmp_path: Path, number: int, words: str):
    error = OSError(number, os.strerror(number))
    assert words in remedy(error)
    with pytest.raises(InputError, match=words), replacing(tmp_path / "out"):
        raise error
