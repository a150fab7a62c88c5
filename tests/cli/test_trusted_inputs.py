"""With GEMMDB_TRUST, only listed files get into the user's own table, which lookups use without a listing."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
from kit.tables import Kit

from gemmdb.settings import Settings

KIT = Kit()
FOREIGN, ROWS, LISTED = Path("foreign.db"), Path("rows.jsonl"), Path("trusted")
ADDING = {FOREIGN: "merge {out} foreign.db --out {out}", ROWS: "import rows.jsonl --from jsonl -o {out}"}
"""A file of somebody else, and the command that adds its rows to a table."""


@pytest.fixture
def own(gemmdb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own table, under a policy that lists nothing yet. Beside it, the files of somebody else."""
    KIT.write(FOREIGN, [KIT.row(KIT.configs[1], us=5.0)])
    assert gemmdb("export", str(FOREIGN), "--to", "jsonl", "--out", str(ROWS)).code == 0
    monkeypatch.setenv("GEMMDB_TRUST", str(tmp_path / LISTED))
    LISTED.touch()
    path = Settings.read().user_table
    path.parent.mkdir(parents=True)
    return KIT.write(path, [KIT.row()])


def add(gemmdb, file: Path, out: Path):
    return gemmdb(*ADDING[file].format(out=out).split())


def follow(said: str) -> None:
    """Do what a message advises."""
    subprocess.run(said.split("`")[1], shell=True, check=True)


@pytest.mark.parametrize("file", ADDING)
@pytest.mark.parametrize("linked", [False, True])
def test_a_file_gets_into_the_own_table_only_if_it_is_listed(gemmdb, own, file, linked, tmp_path):
    out = own
    if linked:
        out = tmp_path / "link.db"
        out.symlink_to(own)
    before = own.read_bytes()
    done = add(gemmdb, file, out)
    done.refused(f"{file} is not trusted: {tmp_path / LISTED} does not list its SHA-256")
    assert own.read_bytes() == before
    follow(done.err)
    assert hashlib.sha256(file.read_bytes()).hexdigest() in LISTED.read_text()
    assert add(gemmdb, file, out).code == 0
    assert own.read_bytes() != before


@pytest.mark.parametrize("file", ADDING)
def test_other_tables_take_any_file_since_lookups_compare_them(gemmdb, own, file):
    assert add(gemmdb, file, KIT.write(Path("other.db"), [KIT.row()])).code == 0


@pytest.mark.parametrize("file", ADDING)
def test_without_a_policy_any_file_is_taken(gemmdb, own, file, monkeypatch):
    monkeypatch.delenv("GEMMDB_TRUST")
    assert add(gemmdb, file, own).code == 0


def test_a_packed_table_does_not_take_the_place_of_the_own_one(gemmdb, own):
    own.unlink()
    gemmdb("tables", "pack", str(FOREIGN), "--out", str(own)).refused("is not trusted")
    assert not own.exists()


def test_a_pull_does_not_put_a_file_there(gemmdb, own):
    pytest.importorskip("fsspec")
    own.unlink()
    Path("server").mkdir()
    assert gemmdb("tables", "push", "server", shutil.copy(FOREIGN, own.name)).code == 0
    done = gemmdb("tables", "pull", "server")
    done.refused("is not trusted")
    assert not own.exists()
    follow(done.err)
    assert gemmdb("tables", "pull", "server").code == 0
    assert own.exists()


def test_a_policy_that_cannot_be_read_is_an_error(gemmdb, own):
    LISTED.unlink()
    add(gemmdb, FOREIGN, own).refused("GEMMDB_TRUST")
