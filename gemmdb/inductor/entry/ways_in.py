"""Ways in: `enable()` for the whole process, `force` for one block, `record` for a workload file.

None of them imports torch, and `enable()` imports next to nothing. A post-import hook wraps Inductor when the program
imports it, so a program that never compiles pays nothing.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from gemmdb.errors import InputError
from gemmdb.inductor.entry import session
from gemmdb.inductor.observe.phases import PHASES
from gemmdb.settings import Policy, Settings

if TYPE_CHECKING:
    from gemmdb.inductor.observe.recording import Recording
    from gemmdb.kernels.config import Config
    from gemmdb.key.problem import Problem

_TRIGGER = "torch._inductor.compile_fx"


def enable(
    on_miss: str | None = None, tables: str | Path | Sequence[str | Path] = (), policy: Policy | None = None
) -> None:
    """Let every compile of this process look up its GEMMs. A second call replaces the settings.

    `on_miss`: `aten`, `live` or `error`; default GEMMDB_ON_MISS, else `live` where that is short. `tables`: files to
    ask before all others, or one. `policy`: everything else that may be set. The tables are opened at the first
    compile; the warning that a file is missing comes at once. Raises InputError.
    """
    settings = Settings.read()
    chosen = policy_of(on_miss, policy, settings)
    paths = paths_of(tables)
    session.set_up_log()
    if not settings.disabled and not all(map(os.path.exists, (*paths, *settings.tables))):
        from gemmdb.table.catalog import warn_of_missing

        warn_of_missing(settings, paths)
    session.set_enabled(lambda: _sessions().from_tables(chosen, paths, Settings.read()))
    install()


def disable() -> None:
    """Undo `enable`: later compiles are Inductor's own, and torch is as it was before.

    Graphs that are compiled already stay; a backward that is compiled later belongs to them, and puts the wrappers back
    in place. While a compile, `force` or `record` is going on, the wrappers stay too, and pass everything else through.
    """
    session.set_enabled(None)
    if not session.held():
        _uninstall()


def policy_of(on_miss: str | None, policy: Policy | None, settings: Settings) -> Policy:
    """`policy`, or the default one, with `on_miss` from here, from the policy or from GEMMDB_ON_MISS. Raises
    InputError."""
    if not isinstance(policy, (Policy, NoneType)):
        raise InputError(f"policy: a gemmdb.Policy, not {policy!r}")
    return (policy or Policy()).resolved(settings, on_miss)


def paths_of(tables: str | Path | Sequence[str | Path]) -> tuple[Path, ...]:
    """The files that a user names as tables, one or several. Raises InputError."""
    try:
        return tuple(map(Path, (tables,) if isinstance(tables, (str, Path)) else tables))
    except TypeError as error:
        raise InputError(f"tables: paths of files, not {tables!r}") from error


@contextmanager
def force(chooser: Config | Callable[[Problem], Config | None], key: str | None = None) -> Iterator[None]:
    """Inside, compiles of this thread give each product the config that `chooser` says (None: Inductor's own).

    The generator measures its candidates through this. `chooser`: one Config for every product, or a function of the
    Problem. `key` stands for `chooser` in compile-cache keys; a Config is its own key, and a function without one keeps
    its graphs out of the caches. A backward is steered too, whenever it is compiled.
    """
    install()
    if callable(chooser):
        made = _sessions().from_chooser(chooser, key)
    else:
        made = _sessions().from_chooser(lambda problem: chooser, key or chooser.text)
    with session.use(made):
        yield


def record(path: str | Path) -> Recording:
    """Append every GEMM that is compiled from now on to the workload file `path`, with how often its graph was called.

    It records until the program ends, or, as a context manager, until the block ends. The file is written then. While
    gemmdb is not enabled, recording changes nothing in what Inductor compiles.
    """
    from gemmdb.inductor.observe.recording import Recording

    install()
    nothing = _sessions().from_chooser(lambda problem: None, "record")
    return Recording(Path(path), on_stop=session.add_fallback(nothing))


def install() -> None:
    """Wrap Inductor now if it is loaded, else as soon as the program imports it. Idempotent."""
    session.set_up_log()
    if _TRIGGER in sys.modules:
        # Waits while another thread is importing it.
        if _is_loading(importlib.import_module(_TRIGGER)):
            # This thread is importing it, and goes on when we return.
            threading.Thread(target=_wrap_loaded, daemon=True).start()
        else:
            _wrap()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        finder: Any = _Finder()
        sys.meta_path.insert(0, finder)


def _uninstall() -> None:
    """Undo `install`."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    if _wrapped:
        from gemmdb.inductor.entry import install as installation

        installation.uninstall()


def _sessions() -> Any:
    from gemmdb.inductor.entry import session_factory  # The first compile imports what a lookup needs.

    return session_factory


_wrapped = False
"""Whether Inductor was ever wrapped in this process."""


def _wrap() -> None:
    global _wrapped
    with PHASES("load"):
        from gemmdb.inductor.entry import install as installation

        installation.install()
    _wrapped = True


def _wrap_loaded() -> None:
    importlib.import_module(_TRIGGER)
    _wrap()


def _is_loading(module: Any) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


class _Finder:
    """An import hook: the other finders find Inductor, and it is wrapped after it is executed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The spec of Inductor's entry module with our loader around its own; None for every other module."""
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
        """What the module's own loader makes."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Execute the module, then wrap it."""
        self._loader.exec_module(module)
        _wrap()

    def __getattr__(self, name: str) -> Any:
        # get_source and the like, for inspect
        return getattr(self._loader, name)
