"""Inductor's modes and options by name, checked before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch._inductor import config as inductor_config
from torch._inductor import list_mode_options

from gemmdb.errors import InputError, choices, suggestion


def patches(mode: str | None, options: Mapping[str, Any], own: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the changes to Inductor's config that `mode` and `options` of `torch.compile` mean, options last.

    `own`: names of options that others read, for suggestions. Raises InputError for an unknown mode or option, and for
    a value of another type, as `torch.compile` itself does for Inductor's own backend.
    """
    modes = list_mode_options()
    if mode is not None and mode not in modes:
        raise InputError(f"unknown mode {mode!r}; {choices(mode, modes)}")
    known = inductor_config.get_config_copy() if options else {}
    given = {name.replace("-", "_"): value for name, value in options.items()}
    for name, value in given.items():
        if name not in known:
            raise InputError(f"unknown option {name!r} of Inductor{suggestion(name, (*own, *known))}")
        wanted = inductor_config.get_type(name)
        if isinstance(wanted, type) and not isinstance(value, wanted):
            raise InputError(f"option {name!r} of Inductor must be of type {wanted.__name__}, got {value!r:.80}")
    return {**(modes[mode] if mode is not None else {}), **given}
