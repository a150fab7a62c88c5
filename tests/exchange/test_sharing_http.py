"""Tables of an http server: pulled, also after a broken download, and never pushed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from kit.tables import Kit

from gemmdb.errors import InputError
from gemmdb.exchange.share import manifest, remote
from gemmdb.exchange.share.transfer import pull, push

pytest.importorskip("fsspec")
KIT = Kit()


class Server(BaseHTTPRequestHandler):
    """Serves `folder`, also as a proxy of any host. `ranges`: whether it can begin in the middle. `cut`: it breaks off
    after so many bytes of a table, once. `missing`: the status of a file that it does not serve. `pause_s`: it sends a
    table in six pieces, so many seconds apart."""

    folder = Path()
    ranges = True
    cut = 0
    missing = 404
    pause_s = 0.0
    requests: list[tuple[str, int]]

    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def do_GET(self, body: bool = True) -> None:
        path = urlsplit(self.path).path
        try:
            data = (self.folder / path.lstrip("/").removeprefix("t/")).read_bytes()
        except OSError:
            self.send_error(self.missing)
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
        if body:
            self.requests.append((self.path, start))
            self.send(data[start:end], path.endswith(".db"))

    def send(self, data: bytes, table: bool) -> None:
        if table and self.cut:
            self.wfile.write(data[: self.cut])
            type(self).cut = 0
            self.close_connection = True
            self.wfile.flush()
            self.connection.close()
            return
        step = len(data) // 6 if table and self.pause_s else len(data)
        with contextlib.suppress(OSError):  # The client may have left.
            for place in range(0, len(data), step):
                self.wfile.write(data[place : place + step])
                time.sleep(self.pause_s)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def http(served: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Server]]]:
    """The URL of a server of this machine, and what can be set of it."""
    pytest.importorskip("aiohttp")
    for word in ("http", "https", "no", "all"):
        monkeypatch.delenv(f"{word}_proxy", raising=False)
        monkeypatch.delenv(f"{word}_proxy".upper(), raising=False)
    handler = type("Handler", (Server,), {"folder": served, "requests": []})
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
    listed = manifest.parse((served / "manifest.json").read_bytes(), "")["mine.db"]
    part = tmp_path / "here" / f".mine.db.{listed.sha256[:16]}.download"
    part.parent.mkdir()
    part.write_bytes(whole[:20_000])
    (got,) = pull(url, tmp_path / "here")
    assert got.resumed == (20_000 if ranges else 0)
    assert (tmp_path / "here" / "mine.db").read_bytes() == whole
    assert not part.exists()
    if ranges:
        assert min(start for path, start in handler.requests if "mine.db" in path) == 20_000


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
    with pytest.raises(InputError, match="push to a folder and serve that"):
        push(http[0], [mine])


def test_a_proxy_of_the_environment_is_used(tmp_path, http, monkeypatch):
    url, handler = http
    monkeypatch.setenv("HTTP_PROXY", url.removesuffix("/t"))
    (got,) = pull("http://tables.invalid/t", tmp_path / "here")
    assert got.state == "pulled"
    assert "http://tables.invalid/t/mine.db" in [path for path, _ in handler.requests]


def test_no_proxy_is_used_where_the_environment_says_so(tmp_path, http, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with pytest.raises(InputError):
        pull(http[0], tmp_path / "here")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (got,) = pull(http[0], tmp_path / "here")
    assert got.state == "pulled"


def test_a_download_may_take_any_time_as_long_as_bytes_come(tmp_path, http):
    """The timeout is less than the whole download takes."""
    url, handler = http
    handler.ranges, handler.pause_s = False, 0.15
    begun = time.monotonic()
    assert pull(url, tmp_path / "here", patience_s=0.7)[0].state == "pulled"
    assert time.monotonic() - begun > 0.7
    handler.pause_s = 3.0
    with pytest.raises(InputError, match=r"mine\.db"):
        pull(url, tmp_path / "there", patience_s=0.7)


def test_a_server_that_is_not_there_is_one_line(tmp_path):
    pytest.importorskip("aiohttp")
    said = r"127\.0\.0\.1:9/t/manifest\.json: ClientConnectorError \(.*127\.0\.0\.1"
    with pytest.raises(InputError, match=said) as error:
        pull("http://127.0.0.1:9/t", tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("status", [401, 403, 404, 410, 500, 503])
def test_a_server_that_refuses_or_fails_is_told_from_a_missing_file(tmp_path, http, status):
    address, handler = http
    handler.missing = status
    absent = "manifest.json does not exist; `gemmdb tables push` writes it"
    with pytest.raises(InputError, match=absent if status in (404, 410) else rf"manifest\.json: .*\({status}, "):
        pull(f"{address}/nothing", tmp_path)
