"""`enable()` for the whole process, `force` for one block, `record` for a workload file.

None of them imports torch, and `enable()` imports next to nothing. A post-import hook wraps Inductor when the program
imports it, so a program that never compiles pays nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmdb.errors import InputError, checks_arguments
from gemmdb.inductor.entry import active
from gemmdb.phases import PHASES
from gemmdb.settings import Policy, Settings, log_level, name_unknown_variables

if TYPE_CHECKING:
    from gemmdb.inductor.decide.session import Session
    from gemmdb.inductor.observe.recording import Recording
    from gemmdb.kernels.config import Config
    from gemmdb.key.problem import Problem

log = logging.getLogger("gemmdb")
_TRIGGER = "torch._inductor.compile_fx"
_wrapped = False
"""Whether Inductor has been wrapped in this process."""


@checks_arguments
def enable(
    on_miss: str | None = None, tables: str | Path | Sequence[str | Path] = (), policy: Policy | None = None,
    frozen: bool | str | Path | None = None, batch_invariant: bool | None = None,
) -> None:  # fmt: skip
    """Look up the GEMMs of every compile in this process. A second call replaces the settings.

    `on_miss`: `aten`, `live` or `error`; default GEMMDB_ON_MISS, else `live` where that is short. `tables`: one or more
    files to look up before all others. `policy`: all other settings. `frozen`: whether compiles time and write nothing
    and read the named tables alone, or the file of digests that `gemmdb freeze` wrote; default GEMMDB_FROZEN.
    `batch_invariant`: whether the bits of a row of a GEMM must not depend on the number of rows; default that of
    `policy`. The tables are opened at the first compile, but a missing file is reported immediately. Raises InputError
    for a wrong argument or a wrong environment variable.
    """
    settings = settings_of(frozen)
    chosen = policy_of(on_miss, policy, settings, frozen, batch_invariant)
    paths = paths_of(tables)
    set_up_log()
    name_unknown_variables()
    if settings.trust is not None and not settings.disabled:
        from gemmdb import trust

        trust.listed(settings.trust)
    if chosen.frozen and settings.pins is not None and not settings.disabled:
        from gemmdb import trust

        trust.pinned(settings.pins)
    if not settings.disabled and not all(map(os.path.exists, (*paths, *settings.tables))):
        from gemmdb.table.catalog import warn_of_missing

        warn_of_missing(settings, paths)

    def session() -> Session:
        from gemmdb.inductor.entry.table_session import TableSession  # The first compile imports what a lookup needs.

        return TableSession(chosen, paths, settings_of(frozen))

    active.set_enabled(session)
    install()


def disable() -> None:
    """Undo `enable`: later compiles use plain Inductor, and torch is unpatched.

    Graphs that are already compiled stay; if their backward is compiled later, it puts the wrappers back. While a
    compile, `force` or `record` is running, the wrappers stay and pass everything else through.
    """
    active.set_enabled(None)
    if active.held():
        return
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    if _wrapped:
        from gemmdb.inductor.lower.adapter import patches

        patches.undo()


@contextlib.contextmanager
@checks_arguments
def force(chooser: Config | Callable[[Problem], Config | None], key: str | None = None) -> Iterator[None]:
    """Inside the block, compiles in this thread use the config from `chooser` for each GEMM (None: Inductor's choice).

    The generator uses this to measure its candidates. `chooser`: one Config for every GEMM, or a function of the
    Problem. `key` stands for `chooser` in compile-cache keys; a Config is its own key, and a function without one keeps
    its graphs out of the caches. It also applies to a backward that is compiled later.
    """
    from gemmdb.inductor.decide.session import ForcedSession

    install()
    with active.use(ForcedSession(chooser, key)):
        yield


@checks_arguments
def record(path: str | Path) -> Recording:
    """Record every GEMM that is compiled from now on in the workload file `path`, with the number of calls of its
    graph.

    It records until the program ends, or as a context manager until the block ends, and then writes the file. While
    gemmdb is not enabled, recording does not change what Inductor compiles.
    """
    from gemmdb.inductor.decide.session import ForcedSession
    from gemmdb.inductor.observe.recording import Recording

    install()
    return Recording(Path(path), on_stop=active.add_fallback(ForcedSession(None, "record")))


def install() -> None:
    """Wrap Inductor now if it is loaded, else as soon as the program imports it. Idempotent."""
    set_up_log()
    if _TRIGGER in sys.modules:
        # Waits while another thread is importing it.
        module = importlib.import_module(_TRIGGER)
        if getattr(getattr(module, "__spec__", None), "_initializing", False):
            # This thread is importing it and continues when we return.
            threading.Thread(target=_wrap_loaded, daemon=True).start()
        else:
            _wrap()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        finder: Any = _Finder()
        sys.meta_path.insert(0, finder)


def _wrap_loaded() -> None:
    importlib.import_module(_TRIGGER)
    _wrap()


def _wrap() -> None:
    global _wrapped
    with PHASES("load"):
        from gemmdb.inductor.entry import install as installation

        installation.install()
    _wrapped = True


class _Finder:
    """Import hook that wraps Inductor after it is executed; the other finders find it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of Inductor's entry module with our loader around its own; None for any other module."""
        if name != _TRIGGER:
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            wrapped: Any = _Loader(spec.loader)
            spec.loader = wrapped
        return spec


class _Loader:
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> Any:
        """Delegate to the module's own loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Execute the module, then wrap it."""
        self._loader.exec_module(module)
        _wrap()

    def __getattr__(self, name: str) -> Any:
        # get_source and the like, for inspect
        return getattr(self._loader, name)


def policy_of(
    on_miss: str | None, policy: Policy | None, settings: Settings, frozen: bool | str | Path | None = None,
    batch_invariant: bool | None = None,
) -> Policy:  # fmt: skip
    """Return `policy` or the default, with `on_miss`, `frozen` and `batch_invariant` from the argument, the policy or
    the environment. Raises InputError."""
    if policy is not None and not isinstance(policy, Policy):
        raise InputError(f"policy: a gemmdb.Policy, not {policy!r}")
    chosen = policy or Policy()
    if frozen is not None:
        chosen = replace(chosen, frozen=bool(frozen))
    if batch_invariant is not None:
        chosen = replace(chosen, batch_invariant=batch_invariant)
    return chosen.resolved(settings, on_miss)


def settings_of(frozen: bool | str | Path | None) -> Settings:
    """Return the settings of the environment with the argument `frozen`. Raises InputError."""
    if frozen is not None and not (isinstance(frozen, bool | Path) or (isinstance(frozen, str) and frozen)):
        raise InputError(f"frozen: True, False or the file that `gemmdb freeze` wrote, not {frozen!r}")
    return Settings.read().with_frozen(frozen)


def paths_of(tables: str | Path | Sequence[str | Path]) -> tuple[Path, ...]:
    """Return the user's table paths, given as one path or several. Raises InputError."""
    try:
        return tuple(map(Path, (tables,) if isinstance(tables, (str, Path)) else tables))
    except TypeError as error:
        raise InputError(f"tables: paths of files, not {tables!r}") from error


def set_up_log() -> None:
    """Apply GEMMDB_LOG: set its level, and add a handler that prints to stderr unless the program configures logging.
    An unknown level is ignored; without the variable nothing changes."""
    if level := log_level(os.environ.get("GEMMDB_LOG", "")):
        log.setLevel(level)
        if not any(isinstance(handler, _Stderr) for handler in log.handlers):
            log.addHandler(_Stderr())


class _Stderr(logging.Handler):
    """Prints a record to the current stderr, unless the root logger has handlers."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return
        with contextlib.suppress(OSError, ValueError):  # It may be closed.
            sys.stderr.write(f"gemmdb {record.levelname}: {self.format(record).removeprefix('gemmdb: ')}\n")
