"""`torch.compile(model, backend="gemmdb")`: Inductor with gemmdb, with or without `enable()`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.inductor.entry import active
from gemmdb.inductor.entry.enable import install, paths_of, policy_of
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.lookup import environment
from gemmdb.lookup.environment import FileState, file_states
from gemmdb.settings import Policy, Settings

PREFIX = "gemmdb."
"""Prefix of gemmdb's own options."""


def gemmdb(model: Any, inputs: Any, *, mode: str | None = None, options: Mapping[str, Any] | None = None) -> Any:
    """Compile an FX graph. `mode` and `options` are Inductor's; options `gemmdb.on_miss`, `gemmdb.tables` and
    `gemmdb.policy` are `enable`'s arguments. Raises InputError for another `gemmdb.` option."""
    install()
    patches: dict[str, Any] = {}
    if mode is not None and mode != "default":
        from torch._inductor import list_mode_options

        patches.update(list_mode_options(mode))
    given = {name.removeprefix(PREFIX): value for name, value in (options or {}).items() if name.startswith(PREFIX)}
    if unknown := set(given) - {"on_miss", "tables", "policy"}:
        raise InputError(f"unknown option gemmdb.{min(unknown)}; known: gemmdb.on_miss, gemmdb.tables, gemmdb.policy")
    patches.update((name, value) for name, value in (options or {}).items() if not name.startswith(PREFIX))
    import torch._inductor.compile_fx as inductor

    run = functools.partial(inductor.compile_fx, model, inputs, config_patches=patches or None)
    # Before any table file is listed: a disabled gemmdb does nothing.
    if Settings.read().disabled or (not given and active.requested() is not None):
        return run()
    here = environment.current()
    policy = policy_of(given.get("on_miss"), given.get("policy"), here.settings)
    tables = paths_of(given.get("tables", ()))
    with active.use(_session(policy, tables, here.settings, (*here.files, *file_states(set(tables))))):
        return run()


@functools.lru_cache(maxsize=8)
def _session(
    policy: Policy, tables: tuple[Path, ...], settings: Settings, files: tuple[FileState, ...]
) -> TableSession:
    """Cached per file state, so a long-lived process picks up what `gemmdb build` wrote."""
    return TableSession(policy, tables, settings)
