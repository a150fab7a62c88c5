"""`torch.compile(model, backend="gemmdb")`: Inductor with gemmdb in it, whether `enable()` was called or not."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gemmdb.inductor.decide.session import Session
from gemmdb.inductor.entry import active
from gemmdb.inductor.entry.enable import install
from gemmdb.inductor.entry.options import paths_of, policy_of, split
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.lookup import environment
from gemmdb.lookup.environment import Environment, FileState, file_states
from gemmdb.settings import Policy


def gemmdb(model: Any, inputs: Any, *, mode: str | None = None, options: Mapping[str, Any] | None = None) -> Any:
    """Compile an FX graph. `mode` and `options` are Inductor's; options `gemmdb.on_miss`, `gemmdb.tables` and
    `gemmdb.policy` are `enable`'s arguments. Raises InputError for another `gemmdb.` option."""
    install()
    patches: dict[str, Any] = {}
    if mode is not None and mode != "default":
        from torch._inductor import list_mode_options

        patches.update(list_mode_options(mode))
    own, theirs = split(options or {})
    patches.update(theirs)
    import torch._inductor.compile_fx as inductor

    run = functools.partial(inductor.compile_fx, model, inputs, config_patches=patches or None)
    here = environment.current()
    if here.settings.disabled or (not own and active.requested() is not None):
        return run()
    with active.use(_session(own, here)):
        return run()


def _session(own: Mapping[str, Any], here: Environment) -> Session:
    policy = policy_of(own.get("on_miss"), own.get("policy"), here.settings)
    tables = paths_of(own.get("tables", ()))
    return _cached(policy, tables, here, tuple(file_states(set(tables))))


@functools.lru_cache(maxsize=8)
def _cached(policy: Policy, tables: tuple[Path, ...], here: Environment, named: tuple[FileState, ...]) -> Session:
    """A long-lived process sees what `gemmdb build` wrote: another state of a table's file is another session."""
    return TableSession(policy, tables, here.settings)
