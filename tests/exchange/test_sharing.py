"""Tables at a URL: pushed and pulled by file, memory and http; broken downloads go on, and what is wrong is refused."""

from __future__ import annotations

import builtins
import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from kit.tables import Kit

from gemmdb.errors import InputError
from gemmdb.exchange.share import manifest, remote
from gemmdb.exchange.share.transfer import pull, push
from gemmdb.generators.files.manifest import write_manifest
from gemmdb.settings import shipped_tables
from gemmdb.table.reader import Table

fsspec = pytest.importorskip("fsspec")
KIT = Kit()


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return KIT.write(tmp_path / "mine.db", [KIT.row(), KIT.row(KIT.configs[1], us=5.0)])


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """A folder with a pushed table, `mine.db`."""
    KIT.write(tmp_path / "made" / "mine.db", [KIT.row(problem=problem) for problem in KIT.problems])
    push(str(tmp_path / "served"), [tmp_path / "made" / "mine.db"])
    return tmp_path / "served"


class Server(BaseHTTPRequestHandler):
    """Serves `folder`. `ranges`: whether it can begin in the middle. `cut`: it breaks off after so many bytes of a
    table, once."""

    folder = Path()
    ranges = True
    cut = 0
    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def do_GET(self, body: bool = True) -> None:
        try:
            data = (self.folder / self.path.lstrip("/").removeprefix("t/")).read_bytes()
        except OSError:
            self.send_error(404)
            return
        start, end = 0, len(data)
        wanted = self.headers.get("Range") if self.ranges else None
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), int(last) + 1 if last else len(data)
        self.send_response(206 if wanted else 200)
        if self.ranges:
            self.send_header("Accept-Ranges", "bytes")
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{min(end, len(data)) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data[start:end])))
        self.end_headers()
        if not body:
            return
        self.asked.append(f"{self.path} {start}")
        if self.cut and self.path.endswith(".db"):
            self.wfile.write(data[start : start + self.cut])
            type(self).cut = 0
            self.close_connection = True
            self.wfile.flush()
            self.connection.close()
            return
        self.wfile.write(data[start:end])

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def http(served: Path) -> Iterator[tuple[str, type[Server]]]:
    """The URL of a server of this machine, and what can be set of it."""
    pytest.importorskip("aiohttp")
    handler = type("Handler", (Server,), {"folder": served, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/t", handler
    server.shutdown()
    server.server_close()
    thread.join()


def digest(path: Path) -> str:
    with Table.open(path) as table:
        return table.digest


@pytest.mark.parametrize("kind", ["path", "file", "memory"])
def test_a_table_goes_there_and_comes_back(tmp_path, mine, kind):
    folder = tmp_path / "there"
    url = {"path": str(folder), "file": folder.as_uri(), "memory": f"memory://{tmp_path.name}"}[kind]
    (sent,) = push(url, [mine])
    assert (sent.state, sent.size, sent.digest) == ("pushed", mine.stat().st_size, digest(mine))
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
    from gemmdb.table.writer import Store

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
    with pytest.raises(InputError, match=r"mine\.db-journal is left of a file that is gone"):
        pull(str(served), here)
    assert not (here / "mine.db").exists()


@settings(max_examples=10)
@given(rows=KIT.rows(6))
def test_any_table_comes_back(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    table = KIT.write(folder / "a.db", [KIT.row(), *rows])
    push(f"memory://{folder.name}", [table])
    pull(f"memory://{folder.name}", folder / "here")
    assert (folder / "here" / "a.db").read_bytes() == table.read_bytes()


def test_http_is_pulled_from(tmp_path, http, served):
    (got,) = pull(http[0], tmp_path / "here")
    assert (got.state, got.resumed) == ("pulled", 0)
    assert (tmp_path / "here" / "mine.db").read_bytes() == (served / "mine.db").read_bytes()


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_goes_on(tmp_path, http, served, ranges, monkeypatch):
    url, handler = http
    handler.ranges = ranges
    monkeypatch.setattr(remote, "BLOCK", 4096)
    whole = (served / "mine.db").read_bytes()
    listed = manifest.fetch(remote.Remote.at(url))["mine.db"]
    part = tmp_path / "here" / f".mine.db.{listed.sha256[:16]}.download"
    part.parent.mkdir()
    part.write_bytes(whole[:20_000])
    (got,) = pull(url, tmp_path / "here")
    assert got.resumed == (20_000 if ranges else 0)
    assert (tmp_path / "here" / "mine.db").read_bytes() == whole
    assert not part.exists()
    if ranges:
        starts = [int(one.split()[1]) for one in handler.asked if "mine.db" in one]
        assert min(starts) == 20_000


def test_a_connection_that_breaks_leaves_the_old_file_and_goes_on_later(tmp_path, http, served):
    url, handler = http
    here = tmp_path / "here"
    old = KIT.write(here / "mine.db", [KIT.row()])
    before = old.read_bytes()
    handler.cut, handler.ranges = 10_000, False
    with pytest.raises(InputError, match=r"127\.0\.0\.1"):
        pull(url, here, replace=True)
    assert old.read_bytes() == before
    (got,) = pull(url, here, replace=True)
    assert got.state == "pulled"
    assert old.read_bytes() == (served / "mine.db").read_bytes()


def test_http_cannot_be_pushed_to(http, mine):
    with pytest.raises(InputError, match="push to a folder, and serve it"):
        push(http[0], [mine])


def test_other_bytes_are_refused(tmp_path, served):
    here = tmp_path / "here"
    old = KIT.write(here / "mine.db", [KIT.row()])
    before = old.read_bytes()
    data = bytearray((served / "mine.db").read_bytes())
    data[-1] ^= 1
    (served / "mine.db").write_bytes(data)
    with pytest.raises(InputError, match="nothing is replaced: its sha256 is not that of the manifest"):
        pull(str(served), here, replace=True)
    assert old.read_bytes() == before
    assert sorted(path.name for path in here.iterdir()) == ["mine.db"]


@pytest.mark.parametrize("lie", ["digest", "rows", "no table"])
def test_other_rows_are_refused(tmp_path, served, lie):
    """The sha256 is right, so whoever made the manifest made the file too."""
    import hashlib
    import sqlite3

    path = served / "mine.db"
    document = json.loads((served / "manifest.json").read_text())
    (entry,) = document["tables"]
    if lie == "digest":
        entry["digest"] = "0" * 32
    elif lie == "rows":
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("UPDATE measurement SET median_us = median_us")
            db.execute("DELETE FROM measurement WHERE id = (SELECT min(id) FROM measurement)")
            db.commit()
    else:
        path.write_bytes(b"\0" * 5000)
    entry |= {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}
    (served / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match="is refused, and nothing is replaced") as error:
        pull(str(served), tmp_path / "here")
    assert "\n" not in str(error.value)
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize("change", [-1, 1])
def test_another_size_is_refused(tmp_path, served, change):
    document = json.loads((served / "manifest.json").read_text())
    document["tables"][0]["bytes"] += change
    (served / "manifest.json").write_text(json.dumps(document))
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
    document = json.loads((served / "manifest.json").read_text())
    document["tables"][0] |= changes
    (served / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"manifest\.json: a malformed entry"):
        pull(str(served), tmp_path / "here")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"tables": 5, "schema_version": 1}', '{"tables": [], "schema_version": 2}', "[" * 99_999, "\xff"],
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


@pytest.mark.parametrize(
    "url",
    ["ftp://host/x", "simplecache::http://host/x", "zip://a::file:///b", "github://x:y@z/", "reference://", "a\nb"],
)
def test_other_kinds_of_url_are_refused(tmp_path, mine, url):
    for call in (lambda: pull(url, tmp_path / "here"), lambda: push(url, [mine])):
        with pytest.raises(InputError, match="no URL of a known kind") as error:
            call()
        assert "\n" not in str(error.value)


def test_two_tables_of_one_name_are_refused(tmp_path, mine):
    other = KIT.write(tmp_path / "there" / "mine.db", [KIT.row()])
    with pytest.raises(InputError, match=r"two of the tables are called mine\.db"):
        push(str(tmp_path / "served"), [mine, other])


def test_a_table_that_is_none_is_not_pushed(tmp_path, mine):
    (tmp_path / "bad.db").write_text("mine")
    from gemmdb.errors import TableError

    with pytest.raises(TableError):
        push(str(tmp_path / "served"), [tmp_path / "bad.db"])
    assert not (tmp_path / "served").exists()


def test_without_fsspec_the_remedy_is_named(tmp_path, monkeypatch):
    real = builtins.__import__

    def absent(name, *rest):
        if name == "fsspec":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(InputError, match=r"pip install 'gemmdb\[exchange\]'"):
        pull(str(tmp_path), tmp_path)


def test_a_missing_file_system_is_named(tmp_path):
    if __import__("importlib.util").util.find_spec("s3fs"):
        pytest.skip("s3fs is installed")
    with pytest.raises(InputError, match="pip install 's3fs'"):
        pull("s3://bucket/tables", tmp_path)


def test_a_server_that_is_not_there_is_one_line(tmp_path):
    pytest.importorskip("aiohttp")
    with pytest.raises(InputError, match=r"127\.0\.0\.1:9/t/manifest\.json") as error:
        pull("http://127.0.0.1:9/t", tmp_path)
    assert "\n" not in str(error.value)
