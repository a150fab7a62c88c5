"""Which session compiles use now. A program that enables gemmdb and compiles nothing imports only this."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from gemmdb.settings import Settings

if TYPE_CHECKING:
    from gemmdb.inductor.decide.session import Session

_override: ContextVar[Session | None] = ContextVar("gemmdb_session", default=None)
_enabled: Session | Callable[[], Session] | None = None
_fallbacks: list[Session] = []
_pinned: Session | None = None
_lock = threading.Lock()
_holders = 0


def current() -> Session | None:
    """The active session: that of `use`, else the enabled one, else the recorder's. None with GEMMDB_DISABLE."""
    return None if Settings.read().disabled else requested() or next(iter(_fallbacks), None)


def requested() -> Session | None:
    """The session that was asked for: that of `use`, else the enabled one. None with GEMMDB_DISABLE, and while a
    recorder only looks on."""
    global _enabled
    if Settings.read().disabled:
        return None
    override = _pinned or _override.get()
    if override is not None:
        return override
    with _lock:
        if callable(_enabled):
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
    GEMMs and changes nothing. Of several, the oldest."""
    _fallbacks.append(session)
    hold()

    def remove() -> None:
        if session in _fallbacks:
            _fallbacks.remove(session)
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
