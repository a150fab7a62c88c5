"""Tables of an http server: pulled, also after a broken download, and never pushed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from kit.tables import Kit

from gemmdb.errors import InputError
from gemmdb.exchange.share import manifest, remote
from gemmdb.exchange.share.transfer import pull, push

pytest.importorskip("fsspec")
KIT = Kit()


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


def test_a_server_that_is_not_there_is_one_line(tmp_path):
    pytest.importorskip("aiohttp")
    with pytest.raises(InputError, match=r"127\.0\.0\.1:9/t/manifest\.json") as error:
        pull("http://127.0.0.1:9/t", tmp_path)
    assert "\n" not in str(error.value)
