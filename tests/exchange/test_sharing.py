"""Tables at a URL: pushed, pulled, and brought up to date, by file and memory."""

from __future__ import annotations

import contextlib
import json
import threading
from pathlib import Path

import pytest
from kit.tables import Kit

from gemmdb.errors import InputError
from gemmdb.exchange.share import manifest
from gemmdb.exchange.share.transfer import pull, push
from gemmdb.generators.files.manifest import write_manifest
from gemmdb.settings import shipped_tables
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

pytest.importorskip("fsspec")
KIT = Kit()


def digest(path: Path) -> str:
    with Table.open(path) as table:
        return table.digest


@pytest.mark.parametrize("kind", ["path", "file", "memory"])
def test_a_table_goes_there_and_comes_back(tmp_path, mine, kind):
    folder = tmp_path / "there"
    url = {"path": str(folder), "file": folder.as_uri(), "memory": f"memory://{tmp_path.name}"}[kind]
    (sent,) = push(url, [mine])
    assert (sent.state, sent.bytes, sent.digest) == ("pushed", mine.stat().st_size, digest(mine))
    (got,) = pull(url, tmp_path / "here")
    assert (got.state, got.path) == ("pulled", str(tmp_path / "here" / "mine.db"))
    assert Path(got.path).read_bytes() == mine.read_bytes()
    (again,) = pull(url, tmp_path / "here")
    assert again.state == "current"
    assert not list((tmp_path / "here").glob("*.download"))


@pytest.mark.parametrize("name", ["a b", "100%25", "a#b?c", "ü"])
def test_folders_may_have_any_name(tmp_path, mine, name):
    push(str(tmp_path / name), [mine])
    assert (tmp_path / name / "mine.db").exists()
    pull(str(tmp_path / name), tmp_path / "here" / name)
    assert (tmp_path / "here" / name / "mine.db").read_bytes() == mine.read_bytes()


def test_a_pull_waits_for_a_writer_of_the_old_file(tmp_path, served):
    """A journal of the old file must not be applied to the new one."""
    here = tmp_path / "here"
    pull(str(served), here)
    newer = KIT.write(tmp_path / "newer" / "mine.db", [KIT.row(run="run-9")])
    push(str(served), [newer])
    with Store.open(here / "mine.db") as store:
        waiting = threading.Thread(target=pull, args=(str(served), here))
        with store.transaction():
            waiting.start()
            waiting.join(0.5)
            assert waiting.is_alive()
            assert (here / "mine.db").read_bytes() != newer.read_bytes()
        waiting.join(30)
    assert (here / "mine.db").read_bytes() == newer.read_bytes()


def test_a_journal_without_its_file_is_not_applied(tmp_path, served):
    here = tmp_path / "here"
    here.mkdir()
    (here / "mine.db-journal").write_bytes(b"x" * 600)
    with pytest.raises(InputError, match=r"mine\.db-journal is left over from a deleted file"):
        pull(str(served), here)
    assert not (here / "mine.db").exists()


def test_a_pulled_table_is_brought_up_to_date(tmp_path, served):
    here = tmp_path / "here"
    pull(str(served), here)
    newer = KIT.write(tmp_path / "newer" / "mine.db", [KIT.row(run="run-9")])
    push(str(served), [newer])
    (got,) = pull(str(served), here)
    assert (got.state, got.digest) == ("pulled", digest(newer))
    with contextlib.suppress(InputError):
        KIT.write(here / "mine.db", [KIT.row(run="mine")])
    push(str(served), [tmp_path / "made" / "mine.db"])
    with pytest.raises(InputError, match="has other rows"):
        pull(str(served), here)


def test_the_manifest_keeps_what_was_there(tmp_path, served):
    other = KIT.write(tmp_path / "other.db", [KIT.row(run="run-2")])
    push(str(served), [other])
    assert sorted(one.file for one in pull(str(served), tmp_path / "here")) == ["mine.db", "other.db"]
    assert [one.file for one in pull(str(served), tmp_path / "one", ["other.db"])] == ["other.db"]
    with pytest.raises(InputError, match=r"has no table 'none\.db'; it has: mine\.db, other\.db"):
        pull(str(served), tmp_path / "one", ["none.db"])


def test_the_shipped_folder_can_be_pulled_from(tmp_path):
    (got,) = pull(str(shipped_tables()), tmp_path, ["sm89-nvidia-l4.db"])
    assert Path(got.path).read_bytes() == (shipped_tables() / got.file).read_bytes()


def test_a_manifest_of_ours_is_what_a_release_writes(tmp_path, mine):
    write_manifest(tmp_path)
    (entry,) = json.loads((tmp_path / "manifest.json").read_text())["tables"]
    assert manifest.listed(mine, "mine.db").entry == entry
