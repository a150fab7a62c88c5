"""Put the parts together inside a loaded Inductor: passes, lowerings, artefact hooks. Imported by `entry` only."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from gemmdb.errors import InputError, TableError
from gemmdb.inductor import passes, ranks, session
from gemmdb.inductor.adapter import fusing, hooks, state
from gemmdb.inductor.journal import BENCHMARKS, JOURNAL
from gemmdb.inductor.live import searching
from gemmdb.inductor.lower import lowering, padding

_lock = threading.Lock()
_done = False


def install() -> None:
    """Wrap Inductor's entry point, lowerings and compiled graphs. Idempotent; changes nothing while not enabled."""
    global _done
    with _lock:
        if _done:
            return
        hooks.wrap_compile_fx(bodies, _after)
        hooks.hook_artefacts(_take, JOURNAL.add, lambda: JOURNAL.provisional)
        lowering.register()
        padding.keep_from_timing()
        searching.register()
        fusing.see_through_views()
        BENCHMARKS.reader = state.benchmarks
        BENCHMARKS.clear()
        _done = True


def bodies() -> Mapping[str, Any] | None:
    """Our passes by slot for the session in force, None without one; called when a compile begins.

    Tables that cannot be read are a warning, and fail the compile in strict mode only."""
    BENCHMARKS.tick()
    try:
        found = session.current()
        if found is not None:
            ranks.compare(found)
    except (TableError, InputError):
        raise
    except Exception as error:
        JOURNAL.error(f"session: {type(error).__name__}: {error}")
        session.log.warning("gemmdb is out of action: %s", error)
        return None
    return None if found is None else slots(found)


def slots(of: session.Session) -> Mapping[str, Any]:
    """Our passes by slot for one session, which for one compile asks once for each product that is answered."""
    of = session.remembering(of)
    return {"joint_custom_pre_pass": passes.JointPass(of), "post_grad_custom_post_pass": passes.PostGradPass(of)}


def _take() -> str:
    BENCHMARKS.tick()
    return JOURNAL.take()


def _after(ok: bool) -> None:
    BENCHMARKS.tick()
    # A graph that became an artefact took its events along; what is left belongs to AOTInductor, or to a failure.
    if ok:
        JOURNAL.add(JOURNAL.take())
    else:
        JOURNAL.drop()
