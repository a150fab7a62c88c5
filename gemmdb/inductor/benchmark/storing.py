"""Storing the rows of a compile's trials in the user table."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from pathlib import Path

from gemmdb.inductor.benchmark import limits
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.phases import PHASES
from gemmdb.table.measurement import Measurement

log = logging.getLogger("gemmdb")


@PHASES("store")
def store(table: Path | None, rows: Sequence[Measurement]) -> None:
    """Store rows in the user table in one transaction. A table that cannot be written adds an entry to
    `stats()["errors"]`."""
    if table is None or not rows:
        return
    try:
        from gemmdb.table.writer import record_live  # Most compiles store nothing.

        record_live(table, rows, limits.STORE_S)
    except Exception as error:
        JOURNAL.error(f"confirming: {type(error).__name__}: {error}")
        _not_kept(str(table), f"{type(error).__name__}: {error}")


@functools.lru_cache(maxsize=16)
def _not_kept(path: str, why: str) -> None:
    """Warn once that times cannot be stored; the configs are still served."""
    log.warning("times cannot be stored in %s, so the next process confirms the same configs again: %s", path, why)
