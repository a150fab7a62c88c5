"""Session: what one compile asks, and by which policy; and which session is in force.

`session_factory` makes sessions. A program that enables gemmdb and compiles nothing imports only this module.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gemmdb.settings import Policy, Settings, log_level

if TYPE_CHECKING:
    from gemmdb.hit import Hit
    from gemmdb.kernels.config import Config
    from gemmdb.key.problem import Query
    from gemmdb.table.reader import Table

log = logging.getLogger("gemmdb")


Allowed = Callable[["Config"], bool]
"""Whether a config can be the answer."""


@dataclass(frozen=True)
class Session:
    """`find` answers a query, `why` says why it did not.

    `identity` is the part of the compile-cache key that stands for `find`; None keeps the graph out of every cache.
    `user_table` is where live timings go. `declines`: why a query is not tuned live, empty where it is.
    `otherwise`: answers one that should have been and could not. `unconfirmed`: answers one whose answer should have
    been confirmed and could not be. `without_cutlass`: answers one whose CUTLASS kernel cannot be had. `kernel`:
    answers one with the best of the kernels that a condition allows, even if ATen is expected to be faster. `tables`:
    those that are asked, in order.
    """

    find: Callable[[Query], Hit | None]
    policy: Policy
    identity: str | None
    user_table: Path | None = None
    why: Callable[[Query], str] = lambda query: ""
    declines: Callable[[Query], str] = lambda query: ""
    otherwise: Callable[[Query], Hit | None] = lambda query: None
    unconfirmed: Callable[[Query], Hit | None] = lambda query: None
    without_cutlass: Callable[[Query], Hit | None] = lambda query: None
    kernel: Callable[[Query, Allowed], Hit | None] = lambda query, allowed: None
    tables: Callable[[], Sequence[Table]] = tuple


def remembering(of: Session) -> Session:
    """The session with its hits kept: both passes ask for a product, and layers of a model for the same one. A miss may
    have been tuned when it is asked for again."""
    hits: dict[object, Hit] = {}

    def find(query: Query) -> Hit | None:
        asked = (query.problem, query.device, query.l2, tuple(sorted(query.ranges.items())))
        hit = hits.get(asked) or of.find(query)
        if hit is not None:
            hits[asked] = hit
        return hit

    return replace(of, find=find)


_override: ContextVar[Session | None] = ContextVar("gemmdb_session", default=None)
_enabled: Session | Callable[[], Session] | None = None
_fallbacks: list[Session] = []
_pinned: Session | None = None
_lock = threading.Lock()
_holders = 0


def current() -> Session | None:
    """The session in force: that of `use`, else the enabled one, else the recorder's. None with GEMMDB_DISABLE."""
    return None if Settings.read().disabled else steering() or next(iter(_fallbacks), None)


def steering() -> Session | None:
    """The session that was asked for: that of `use`, else the enabled one. None with GEMMDB_DISABLE, and while a
    recorder only looks on."""
    global _enabled
    if Settings.read().disabled:
        return None
    override = _pinned or _override.get()
    if override is not None:
        return override
    with _lock:
        if callable(_enabled) and not isinstance(_enabled, Session):
            _enabled = _enabled()
        return _enabled


def set_enabled(session: Session | Callable[[], Session] | None) -> None:
    """Make `session` (or what the function returns at the first compile) the one of the whole process."""
    global _enabled
    with _lock:
        _enabled = session


def pin(session: Session) -> None:
    """Let every compile of this process use `session`, whatever else is enabled: a program that is timed without
    gemmdb may enable gemmdb itself."""
    global _pinned
    _pinned = session
    hold()


def add_fallback(session: Session) -> Callable[[], None]:
    """What compiles use while nothing is enabled, until the returned function is called: record mode looks at the
    products and changes nothing. Of several, the oldest."""
    _fallbacks.append(session)
    hold()

    def remove() -> None:
        rest = [one for one in _fallbacks if one is not session]
        if len(rest) < len(_fallbacks):
            _fallbacks[:] = rest
            release()

    return remove


@contextmanager
def use(session: Session) -> Iterator[None]:
    """Compile with `session` inside the block, in this thread."""
    token = _override.set(session)
    hold()
    try:
        yield
    finally:
        release()
        _override.reset(token)


def hold() -> None:
    """Say that a compile, a recorder or a `use` block needs the patches of torch, until `release`."""
    global _holders
    with _lock:
        _holders += 1


def release() -> None:
    """Undo one `hold`."""
    global _holders
    with _lock:
        _holders -= 1


def held() -> bool:
    """Whether anyone needs the patches of torch now."""
    return _holders > 0


def set_up_log() -> None:
    """Apply GEMMDB_LOG: its level, and a handler that prints to stderr while the program has set up no logging of its
    own. An unknown level is ignored, and without the variable nothing is changed."""
    if level := log_level(os.environ.get("GEMMDB_LOG", "")):
        log.setLevel(level)
        if not any(isinstance(handler, _Stderr) for handler in log.handlers):
            log.addHandler(_Stderr())


class _Stderr(logging.Handler):
    """Prints a record on what is stderr then. The root logger's handlers, if there are any, print it instead."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return
        with contextlib.suppress(OSError, ValueError):  # It may be closed.
            sys.stderr.write(f"gemmdb {record.levelname}: {self.format(record).removeprefix('gemmdb: ')}\n")
