"""A folder behind a URL, via fsspec. Every failure is an InputError that names the URL."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.table.measurement import one_line

SCHEMES = ("file", "memory", "http", "https", "s3", "gs", "hf")
"""Accepted URL schemes. fsspec supports more, some of which run code or chain other URLs."""
EXTRAS = {"http": "gemmdb[exchange]", "https": "gemmdb[exchange]", "s3": "s3fs", "gs": "gcsfs", "hf": "huggingface_hub"}
_HTTP = ("http", "https")
_MISSING = (404, 410)
"""HTTP status codes for a missing file."""
BLOCK = 2**22
"""Bytes per read."""
PATIENCE_S = 60.0
"""Seconds that an HTTP server may be silent."""


@dataclass(frozen=True)
class Remote:
    """A folder: its URL, with fsspec's file system and path for it."""

    url: str
    scheme: str
    system: Any
    path: str

    @classmethod
    def at(cls, url: str, patience_s: float = PATIENCE_S) -> Remote:
        """Return the folder at a URL or local path. `patience_s`: how many seconds an HTTP server may be silent; the
        transfer itself has no time limit. Raises InputError, including when fsspec is missing."""
        scheme, mark, _ = url.partition("://")
        full = url if mark else str(Path(url).absolute())  # fsspec does not undo the escapes of a URI.
        scheme = scheme if mark else "file"
        if scheme not in SCHEMES or "::" in url or not url.isprintable():
            raise InputError(f"{one_line(url)[:200]!r} has no supported URL scheme: {', '.join(SCHEMES)}")
        try:
            import fsspec
        except ImportError as error:
            raise InputError("tables at a URL need fsspec: pip install 'gemmdb[exchange]'") from error
        try:
            options: dict[str, Any] = {"client_kwargs": _client(patience_s)} if scheme in _HTTP else {}
            if scheme != "memory":  # Ignore cached listings and downloads: files may have changed.
                options |= {"use_listings_cache": False, "skip_instance_cache": True}
            system, path = fsspec.core.url_to_fs(full.rstrip("/"), **options)
        except ImportError as error:
            raise InputError(
                f"{scheme}:// needs another package: pip install '{EXTRAS.get(scheme, scheme)}'"
            ) from error
        except Exception as error:
            raise _failed(url, error) from error
        return cls(url.rstrip("/"), scheme, system, str(path).rstrip("/"))

    def read(self, name: str, limit: int) -> bytes:
        """Read the file `name`, of at most `limit` bytes. Raises InputError, and FileNotFoundError if it is missing."""
        with self._guard(name), self.system.open(f"{self.path}/{name}", "rb") as file:
            found: bytes = file.read(limit + 1)
        if len(found) > limit:
            raise InputError(f"{self.url}/{name}: larger than {limit:,} bytes")
        return found

    def blocks(self, name: str, start: int) -> Iterator[tuple[int, bytes]]:
        """Yield the file in (offset, bytes) blocks from byte `start` on. A server without range support sends it from
        the beginning. Raises InputError, and FileNotFoundError if it is missing."""
        with self._guard(name), contextlib.ExitStack() as stack:
            # A size of 0 makes the HTTP file system stream; the others then use their default.
            streaming = {"block_size": 0} if self.scheme in _HTTP else {}
            options = {"block_size": BLOCK} if start else streaming
            file = stack.enter_context(self.system.open(f"{self.path}/{name}", "rb", **options))
            try:
                if start:
                    file.seek(start)
                block = file.read(BLOCK)
            except ValueError:  # Raised by the HTTP file system if a server ignores ranges.
                file, start = stack.enter_context(self.system.open(f"{self.path}/{name}", "rb", **streaming)), 0
                block = file.read(BLOCK)
            while block:
                yield start, block
                start += len(block)
                block = file.read(BLOCK)

    def write(self, name: str, source: Path) -> None:
        """Upload a local file as `name`. Raises InputError."""
        target = f"{self.path}/{name}"
        if self.scheme in _HTTP:
            raise InputError(f"{self.url}: cannot push to an HTTP server; push to a folder and serve that")
        with self._guard(name):
            self.system.makedirs(self.path, exist_ok=True)
            if self.scheme != "file":  # Object stores publish a file only when it is complete.
                self.system.put_file(str(source), target)
                return
            part = Path(f"{self.path}/.{name}.part")
            try:
                self.system.put_file(str(source), str(part))
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _guard(self, name: str) -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except FileNotFoundError as error:
            if error.__cause__ is None or getattr(error.__cause__, "status", None) in _MISSING:
                raise
            # The HTTP file system raises this whenever a server refuses, fails or is unreachable.
            raise _failed(f"{self.url}/{name}", error.__cause__) from error
        except Exception as error:  # The file systems' errors have no common class.
            raise _failed(f"{self.url}/{name}", error) from error


def _client(patience_s: float) -> dict[str, Any]:
    """Return the arguments for aiohttp's sessions. `trust_env`: use the proxies of HTTP_PROXY, HTTPS_PROXY and
    NO_PROXY."""
    import aiohttp

    limits = aiohttp.ClientTimeout(total=None, sock_connect=patience_s, sock_read=patience_s)
    return {"trust_env": True, "timeout": limits}


def _failed(url: str, error: BaseException) -> InputError:
    return InputError(f"{one_line(url)[:200]}: {type(error).__name__} ({one_line(str(error))[:160]})")
