"""`torch.compile(model, backend="gemmdb")`: Inductor with gemmdb in it, whether `enable()` was called or not."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.inductor.entry import session, session_factory
from gemmdb.inductor.entry import ways_in as entry
from gemmdb.settings import Policy, Settings

_OWN = "gemmdb."


def gemmdb(model: Any, inputs: Any, *, mode: str | None = None, options: Mapping[str, Any] | None = None) -> Any:
    """Compile an FX graph. `mode` and `options` are Inductor's; options `gemmdb.on_miss`, `gemmdb.tables` and
    `gemmdb.policy` are `enable`'s arguments. Raises InputError for another `gemmdb.` option."""
    entry.install()
    patches: dict[str, Any] = {}
    if mode is not None and mode != "default":
        from torch._inductor import list_mode_options

        patches.update(list_mode_options(mode))
    own, theirs = split(options or {})
    patches.update(theirs)
    import torch._inductor.compile_fx as inductor

    run = functools.partial(inductor.compile_fx, model, inputs, config_patches=patches or None)
    if not own and session.steering() is not None:
        return run()
    if Settings.read().disabled:
        return run()
    with session.use(_session(own)):
        return run()


def split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(gemmdb's options without their prefix, Inductor's options)."""
    own = {name.removeprefix(_OWN): value for name, value in options.items() if name.startswith(_OWN)}
    unknown = set(own) - {"on_miss", "tables", "policy"}
    if unknown:
        raise InputError(f"unknown option gemmdb.{min(unknown)}; known: gemmdb.on_miss, gemmdb.tables, gemmdb.policy")
    return own, {name: value for name, value in options.items() if not name.startswith(_OWN)}


def _session(own: Mapping[str, Any]) -> session.Session:
    settings = Settings.read()
    policy = entry.policy_of(own.get("on_miss"), own.get("policy"), settings)
    tables = entry.paths_of(own.get("tables", ()))
    return _cached(policy, tables, settings, _stamp(settings, tables))


@functools.lru_cache(maxsize=8)
def _cached(policy: Policy, tables: tuple[Path, ...], settings: Settings, stamp: Any) -> session.Session:
    return session_factory.from_tables(policy, tables, settings)


def _stamp(settings: Settings, tables: tuple[Path, ...]) -> tuple[Any, ...]:
    """Changes when a table file does, so that a long-lived process sees what `gemmdb build` wrote."""
    found = []
    for path in (*tables, *settings.tables, settings.user_table, settings.user_table.parent):
        try:
            stat = path.stat()
            found.append((str(path), stat.st_mtime_ns, stat.st_size))
        except OSError:
            found.append((str(path), 0, 0))
    return tuple(found)
