"""The active session. A program that enables gemmdb but never compiles imports only this module."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from gemmdb.settings import Settings

if TYPE_CHECKING:
    from gemmdb.inductor.decide.session import Session

_override: ContextVar[Session | None] = ContextVar("gemmdb_session", default=None)
_enabled: Session | Callable[[], Session] | None = None
_fallbacks: list[Session] = []
_open_ops: tuple[str, ...] = ()
_pinned: Session | Callable[[], Session] | None = None
_lock = threading.Lock()
_holders = 0


def current() -> Session | None:
    """Return the active session: from `use`, else from `enable`, else the recorder's. None if GEMMDB_DISABLE is set."""
    return None if Settings.read().disabled else _keyed(_requested() or next(iter(_fallbacks), None))


def requested() -> Session | None:
    """Return the session from `use`, else from `enable`. None if GEMMDB_DISABLE is set or only a recorder is active."""
    return _keyed(_requested())


def open_ops() -> Sequence[str]:
    """Return the names of the engines' operators that are open."""
    return _open_ops


def set_open_ops(names: Sequence[str]) -> None:
    """Set the engines' operators that later compiles open."""
    global _open_ops
    _open_ops = tuple(sorted(set(names)))


def _keyed(session: Session | None) -> Session | None:
    """Return a session whose identity, and so every compile-cache key, names the operators that are open."""
    if session is None or session.identity is None or not _open_ops:
        return session
    return session.variant(identity=f"{session.identity} open_ops={','.join(_open_ops)}")


def _requested() -> Session | None:
    global _enabled, _pinned
    if Settings.read().disabled:
        return None
    if _pinned is None and (override := _override.get()) is not None:
        return override
    with _lock:
        if callable(_pinned):
            _pinned = _pinned()
        if _pinned is not None:
            return _pinned
        if callable(_enabled):
            _enabled = _enabled()
        return _enabled


def set_enabled(session: Session | Callable[[], Session] | None) -> None:
    """Set the session for the whole process: `session`, or the result of calling it at the first compile."""
    global _enabled
    with _lock:
        _enabled = session


def pin(session: Session | Callable[[], Session]) -> None:
    """Force every compile in this process to use `session`, or the result of calling it at the first compile, even if
    something else is enabled: a program that is timed without gemmdb may call `enable` itself."""
    global _pinned
    _pinned = session
    hold()


def add_fallback(session: Session) -> Callable[[], None]:
    """Use `session` while nothing is enabled, until the returned function is called. Record mode uses this to see the
    GEMMs without changing them. If there are several, the oldest wins."""
    _fallbacks.append(session)
    hold()

    def remove() -> None:
        if session in _fallbacks:
            _fallbacks.remove(session)
            release()

    return remove


@contextmanager
def use(session: Session) -> Iterator[None]:
    """Use `session` for compiles inside the block, in this thread."""
    token = _override.set(session)
    hold()
    try:
        yield
    finally:
        release()
        _override.reset(token)


def hold() -> None:
    """Keep torch patched until `release`: a compile, a recorder or a `use` block needs it."""
    global _holders
    with _lock:
        _holders += 1


def release() -> None:
    """Undo one `hold`."""
    global _holders
    with _lock:
        _holders -= 1


def held() -> bool:
    """Return whether anyone needs torch to stay patched."""
    return _holders > 0
