"""What a user may pass to `enable` and `backend="gemmdb"`, and the log that GEMMDB_LOG asks for."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.settings import Policy, Settings, log_level

log = logging.getLogger("gemmdb")
PREFIX = "gemmdb."


def policy_of(on_miss: str | None, policy: Policy | None, settings: Settings) -> Policy:
    """`policy`, or the default one, with `on_miss` from here, from the policy or from GEMMDB_ON_MISS. Raises
    InputError."""
    if policy is not None and not isinstance(policy, Policy):
        raise InputError(f"policy: a gemmdb.Policy, not {policy!r}")
    return (policy or Policy()).resolved(settings, on_miss)


def paths_of(tables: str | Path | Sequence[str | Path]) -> tuple[Path, ...]:
    """The files that a user names as tables, one or several. Raises InputError."""
    try:
        return tuple(map(Path, (tables,) if isinstance(tables, (str, Path)) else tables))
    except TypeError as error:
        raise InputError(f"tables: paths of files, not {tables!r}") from error


def split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(gemmdb's options of a backend without their prefix, Inductor's options). Raises InputError for an unknown one of
    gemmdb's."""
    own = {name.removeprefix(PREFIX): value for name, value in options.items() if name.startswith(PREFIX)}
    if unknown := set(own) - {"on_miss", "tables", "policy"}:
        raise InputError(f"unknown option gemmdb.{min(unknown)}; known: gemmdb.on_miss, gemmdb.tables, gemmdb.policy")
    return own, {name: value for name, value in options.items() if not name.startswith(PREFIX)}


def set_up_log() -> None:
    """Apply GEMMDB_LOG: its level, and a handler that prints to stderr while the program has set up no logging of its
    own. An unknown level is ignored, and without the variable nothing is changed."""
    if level := log_level(os.environ.get("GEMMDB_LOG", "")):
        log.setLevel(level)
        if not any(isinstance(handler, _Stderr) for handler in log.handlers):
            log.addHandler(_Stderr())


class _Stderr(logging.Handler):
    """Prints a record to the current stderr. The root logger's handlers, if there are any, print it instead."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers:
            return
        with contextlib.suppress(OSError, ValueError):  # It may be closed.
            sys.stderr.write(f"gemmdb {record.levelname}: {self.format(record).removeprefix('gemmdb: ')}\n")
