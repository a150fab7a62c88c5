"""What is refused at a URL: other bytes, other rows, malformed manifests; nothing is replaced then."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.tables import Kit

from gemmdb.errors import InputError, TableError
from gemmdb.exchange.share.transfer import pull, push

pytest.importorskip("fsspec")
KIT = Kit()


@contextlib.contextmanager
def edited(served: Path) -> Iterator[dict[str, Any]]:
    """The entry of the manifest, to be changed."""
    document = json.loads((served / "manifest.json").read_text())
    yield document["tables"][0]
    (served / "manifest.json").write_text(json.dumps(document))


def test_other_bytes_are_refused(tmp_path, served):
    here = tmp_path / "here"
    old = KIT.write(here / "mine.db", [KIT.row()])
    before = old.read_bytes()
    data = bytearray((served / "mine.db").read_bytes())
    data[-1] ^= 1
    (served / "mine.db").write_bytes(data)
    with pytest.raises(InputError, match="nothing was replaced: its sha256 does not match the manifest"):
        pull(str(served), here, replace=True)
    assert old.read_bytes() == before
    assert sorted(path.name for path in here.iterdir()) == ["mine.db"]


@pytest.mark.parametrize("lie", ["digest", "rows", "no table"])
def test_other_rows_are_refused(tmp_path, served, lie):
    """The sha256 is right, so whoever made the manifest made the file too."""
    path = served / "mine.db"
    if lie == "rows":
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("UPDATE measurement SET median_us = median_us")
            db.execute("DELETE FROM measurement WHERE id = (SELECT min(id) FROM measurement)")
            db.commit()
    elif lie == "no table":
        path.write_bytes(b"\0" * 5000)
    with edited(served) as entry:
        entry |= {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}
        if lie == "digest":
            entry["digest"] = "0" * 32
    with pytest.raises(InputError, match="was rejected, and nothing was replaced") as error:
        pull(str(served), tmp_path / "here")
    assert "\n" not in str(error.value)
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize("change", [-1, 1])
def test_another_size_is_refused(tmp_path, served, change):
    with edited(served) as entry:
        entry["bytes"] += change
    with pytest.raises(InputError, match="larger than the manifest" if change < 0 else "pull again"):
        pull(str(served), tmp_path / "here")
    assert not (tmp_path / "here" / "mine.db").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"file": "../mine.db"}, {"file": "/etc/mine.db"}, {"file": ".mine.db"}, {"file": "mine"}, {"file": 5},
        {"file": "a\n.db"}, {"sha256": "x"}, {"bytes": -1}, {"bytes": 2**60}, {"bytes": True}, {"digest": None},
    ],
)  # fmt: skip
def test_a_malformed_entry_is_refused(tmp_path, served, changes):
    with edited(served) as entry:
        entry |= changes
    with pytest.raises(InputError, match=r"manifest\.json: a malformed entry"):
        pull(str(served), tmp_path / "here")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"tables": 5, "schema_version": 1}', '{"tables": [], "schema_version": 4}', "[" * 99_999, "\xff"],
)
def test_a_malformed_manifest_is_refused(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"manifest\.json"):
        pull(str(tmp_path), tmp_path / "here")


def test_rows_of_ones_own_are_not_lost(tmp_path, served):
    here = tmp_path / "here"
    own = KIT.write(here / "mine.db", [KIT.row()])
    before = own.read_bytes()
    with pytest.raises(InputError, match="has other rows, which a pull would lose"):
        pull(str(served), here)
    assert own.read_bytes() == before
    pull(str(served), here, replace=True)
    assert own.read_bytes() == (served / "mine.db").read_bytes()


@pytest.mark.parametrize(
    "url",
    ["ftp://host/x", "simplecache::http://host/x", "zip://a::file:///b", "github://x:y@z/", "reference://", "a\nb"],
)
def test_other_kinds_of_url_are_refused(tmp_path, mine, url):
    for call in (lambda: pull(url, tmp_path / "here"), lambda: push(url, [mine])):
        with pytest.raises(InputError, match="no supported URL scheme") as error:
            call()
        assert "\n" not in str(error.value)


def test_two_tables_of_one_name_are_refused(tmp_path, mine):
    other = KIT.write(tmp_path / "there" / "mine.db", [KIT.row()])
    with pytest.raises(InputError, match=r"two of the tables are called mine\.db"):
        push(str(tmp_path / "served"), [mine, other])


def test_a_table_that_is_none_is_not_pushed(tmp_path):
    (tmp_path / "bad.db").write_text("mine")
    with pytest.raises(TableError):
        push(str(tmp_path / "served"), [tmp_path / "bad.db"])
    assert not (tmp_path / "served").exists()


def test_without_fsspec_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(InputError, match=r"pip install 'gemmdb\[exchange\]'"):
        pull(str(tmp_path), tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("s3fs") is not None, reason="s3fs is installed")
def test_a_missing_file_system_is_named(tmp_path):
    with pytest.raises(InputError, match="pip install 's3fs'"):
        pull("s3://bucket/tables", tmp_path)
