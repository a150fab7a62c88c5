"""`torch.compile(model, backend="gemmdb")`: Inductor with gemmdb, with or without `enable()`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError, choices
from gemmdb.inductor.entry import active
from gemmdb.inductor.entry.enable import install, paths_of, policy_of, settings_of
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.lookup import environment
from gemmdb.lookup.environment import FileState, file_states
from gemmdb.settings import Policy, Settings, name_unknown_variables

PREFIX = "gemmdb."
"""Prefix of gemmdb's own options."""
OWN = ("gemmdb.on_miss", "gemmdb.tables", "gemmdb.policy", "gemmdb.frozen", "gemmdb.batch_invariant")


def gemmdb(model: Any, inputs: Any, *, mode: str | None = None, options: Mapping[str, Any] | None = None) -> Any:
    """Compile an FX graph. `mode` and `options` are Inductor's; options `gemmdb.on_miss`, `gemmdb.tables`,
    `gemmdb.policy`, `gemmdb.frozen` and `gemmdb.batch_invariant` are `enable`'s arguments. Raises InputError for an
    unknown mode or option, before it compiles."""
    install()
    name_unknown_variables()
    options = options or {}
    if unknown := sorted(name for name in options if name.startswith(PREFIX) and name not in OWN):
        raise InputError(f"unknown option {unknown[0]!r}; {_instead(unknown[0], options[unknown[0]])}")
    given = {name.removeprefix(PREFIX): value for name, value in options.items() if name in OWN}
    import torch._inductor.compile_fx as inductor

    from gemmdb.inductor.lower.adapter.options import patches as patches_of

    patches = patches_of(mode, {name: value for name, value in options.items() if name not in OWN}, OWN)

    run = functools.partial(inductor.compile_fx, model, inputs, config_patches=patches or None)
    # Before any table file is listed: a disabled gemmdb does nothing.
    if Settings.read().disabled or (not given and active.requested() is not None):
        return run()
    here = environment.current()
    frozen = given.get("frozen")
    settings = here.settings if frozen is None else settings_of(frozen)
    policy = policy_of(
        given.get("on_miss"), given.get("policy"), settings, frozen, given.get("batch_invariant")
    )  # fmt: skip
    tables = paths_of(given.get("tables", ()))
    with active.use(_session(policy, tables, settings, (*here.files, *file_states(set(tables))))):
        return run()


def _instead(name: str, value: object) -> str:
    """Return what to write for an option that there is not."""
    field = name.removeprefix(PREFIX)
    if field in Policy.__dataclass_fields__:
        return f'a field of the policy is given as "gemmdb.policy": gemmdb.Policy({field}={value!r})'
    return choices(name, OWN)


@functools.lru_cache(maxsize=8)
def _session(
    policy: Policy, tables: tuple[Path, ...], settings: Settings, files: tuple[FileState, ...]
) -> TableSession:
    """Cached per file state, so a long-lived process picks up what `gemmdb build` wrote."""
    return TableSession(policy, tables, settings)
