"""`open_ops()`: let gemmdb look into operators of serving engines."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from gemmdb.errors import InputError, checks_arguments, choices
from gemmdb.inductor.entry import active
from gemmdb.inductor.match.engine_ops import ENGINE_OPS, EngineOp

log = logging.getLogger("gemmdb")
OPENED = "opened"


@checks_arguments
def open_ops(ops: str | Sequence[str] | None = None) -> dict[str, str]:
    """Look up the GEMMs in calls of serving engines' operators, in later compiles of this process.

    `ops`: the operators, such as `_C::cutlass_scaled_mm`; None: all that gemmdb knows; empty: none, which is the
    default. Another call replaces the setting. Load the engine first. Returns for each operator `opened`, or why it was
    not: it is not loaded, or this version of the engine declares it differently. Such an operator stays as it is. A
    call is replaced only by a kernel that this compile timed against the operator itself. Raises InputError for an
    operator that gemmdb does not know.
    """
    names = list(ENGINE_OPS) if ops is None else [ops] if isinstance(ops, str) else list(ops)
    for name in names:
        if name not in ENGINE_OPS:
            raise InputError(f"gemmdb knows no operator {name!r}; {choices(str(name), tuple(ENGINE_OPS))}")
    found = {name: ENGINE_OPS[name].rejection() for name in names}
    for name, rejected in found.items():
        if rejected and ops is not None:
            log.warning("%s is not opened: %s", name, rejected)
    active.set_open_ops([name for name, rejected in found.items() if rejected is None])
    return {name: str(rejected or OPENED) for name, rejected in found.items()}


def opened() -> Mapping[Any, EngineOp]:
    """Return the operators that are open, by overload."""
    ops = (ENGINE_OPS[name] for name in active.open_ops())
    return {op.overload: op for op in ops if op.rejection() is None}
