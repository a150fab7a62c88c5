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
    """Serves `folder`. `ranges`: whether it can begin in the middle. `cut`: it breaks off after so many bytes of a
    table, once. `missing`: the status of a file that it does not serve."""

    folder = Path()
    ranges = True
    cut = 0
    missing = 404
    asked: list[str]

    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def do_GET(self, body: bool = True) -> None:
        try:
            data = (self.folder / self.path.lstrip("/").removeprefix("t/")).read_bytes()
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
    with serving(handler) as address:
        yield f"{address}/t", handler


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


class Proxy(Server):
    """Fetches for others: it is asked for whole URLs, and serves `folder` for all of them."""

    def do_GET(self, body: bool = True) -> None:
        if self.path.startswith("http://"):
            self.asked.append(self.path)
            self.path = urlsplit(self.path).path
            super().do_GET(body)
        else:
            self.send_error(400)


PROXIES = [name for word in ("http", "https", "no", "all") for name in (f"{word}_proxy", f"{word}_proxy".upper())]


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)


@contextlib.contextmanager
def serving(handler: type[Server]) -> Iterator[str]:
    """The address of a server of this machine with a handler."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_proxy_of_the_environment_is_used(tmp_path, served, no_proxies, monkeypatch):
    pytest.importorskip("aiohttp")
    handler = type("Handler", (Proxy,), {"folder": served, "asked": []})
    with serving(handler) as address:
        monkeypatch.setenv("HTTP_PROXY", address)
        (got,) = pull("http://tables.invalid/t", tmp_path / "here")
    assert got.state == "pulled"
    assert "http://tables.invalid/t/mine.db" in handler.asked


def test_no_proxy_is_used_where_the_environment_says_so(tmp_path, http, no_proxies, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with pytest.raises(InputError):
        pull(http[0], tmp_path / "here")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (got,) = pull(http[0], tmp_path / "here")
    assert got.state == "pulled"


class Slow(Server):
    """Sends a table piece by piece, `pause_s` seconds apart."""

    pause_s = 0.0

    def do_GET(self, body: bool = True) -> None:
        if not (body and self.path.endswith(".db")):
            super().do_GET(body)
            return
        data = (self.folder / "mine.db").read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(OSError):  # The client may have left.
            for start in range(0, len(data), len(data) // 6):
                self.wfile.write(data[start : start + len(data) // 6])
                time.sleep(self.pause_s)


@pytest.mark.parametrize(("pause_s", "waits"), [(0.15, True), (3.0, False)])
def test_a_download_may_take_any_time_as_long_as_bytes_come(tmp_path, served, no_proxies, pause_s, waits):
    """The patience is less than the whole download takes."""
    pytest.importorskip("aiohttp")
    handler = type("Handler", (Slow,), {"folder": served, "asked": [], "ranges": False, "pause_s": pause_s})
    with serving(handler) as address:
        begun = time.monotonic()
        if waits:
            assert pull(f"{address}/t", tmp_path / "here", patience_s=0.7)[0].state == "pulled"
            assert time.monotonic() - begun > 0.7
        else:
            with pytest.raises(InputError, match=r"mine\.db"):
                pull(f"{address}/t", tmp_path / "here", patience_s=0.7)


def test_a_server_that_is_not_there_is_one_line(tmp_path):
    pytest.importorskip("aiohttp")
    with pytest.raises(
        InputError, match=r"127\.0\.0\.1:9/t/manifest\.json: ClientConnectorError \(.*127\.0\.0\.1"
    ) as error:
        pull("http://127.0.0.1:9/t", tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("status", [401, 403, 404, 410, 500, 503])
def test_a_server_that_refuses_or_fails_is_told_from_a_missing_file(tmp_path, http, status):
    address, handler = http
    handler.missing = status
    absent = status in (404, 410)
    said = (
        r"manifest\.json does not exist; `gemmdb tables push` writes it"
        if absent
        else rf"manifest\.json: .*\({status}, "
    )
    with pytest.raises(InputError, match=said):
        pull(f"{address}/nothing", tmp_path)
