"""Puts gemmdb into a loaded Inductor, and takes it out again. Only `entry` imports this."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from gemmdb.errors import InputError, TableError
from gemmdb.inductor.benchmark import searching
from gemmdb.inductor.decide import ranks, uncompiled
from gemmdb.inductor.entry import passes, session
from gemmdb.inductor.lower import lowering, padding
from gemmdb.inductor.lower.adapter import (
    compiling,
    cutlass,
    decomposing,
    dependent,
    fusing,
    hooks,
    naming,
    patches,
    prebuilt,
    state,
    zeroing,
)
from gemmdb.inductor.lower.adapter import padding as pad_mm
from gemmdb.inductor.match import taken_apart
from gemmdb.inductor.observe import summaries
from gemmdb.inductor.observe.journal import BENCHMARKS, JOURNAL
from gemmdb.inductor.observe.phases import PHASES

_lock = threading.Lock()
_registered = False


def install() -> None:
    """Apply the register of patches. Idempotent; without a session in force the wrappers pass through."""
    global _registered
    with _lock:
        if not _registered:
            lowering.register()
            BENCHMARKS.reader = state.benchmarks
            BENCHMARKS.clear()
            JOURNAL.listeners.append(summaries.log_graph)
            _registered = True
        patches.apply(_wrappers())


def uninstall() -> None:
    """Undo the register of patches."""
    patches.undo()


def _wrappers() -> Mapping[str, patches.Wrapper]:
    """The wrappers of the register, by name."""
    return {
        "compile_fx": hooks.with_passes(bodies, _after),
        "codegen": compiling.with_another_attempt(uncompiled.attempt),
        "graph_init": hooks.keeping_events(_take, lambda: JOURNAL.provisional),
        "graph_ready": hooks.reporting(_add),
        "save_graph": hooks.unless_provisional,
        "tracing": decomposing.tracing,
        "replacing": decomposing.replacing,
        "lowering": lowering.steer,
        "should_pad": pad_mm.unless(padding.answered),
        "fusion_score": fusing.in_any_loops,
        "define_kernel": naming.keeping_names,
        "launching": dependent.launching,
        "waiting": dependent.waiting_first,
        "zeroing": zeroing.counters_alone,
        "cutlass_headers": cutlass.with_our_headers,
        "cuda_compile": prebuilt.with_prebuilt,
        "timings": lambda _: searching.keep,
    }


def bodies() -> Mapping[str, Any] | None:
    """Our passes by slot for the session in force, None without one; called when a compile begins.

    Unreadable tables are a warning; they fail the compile in strict mode only."""
    BENCHMARKS.tick()
    try:
        with PHASES("tables"):
            found = session.current()
        if found is not None:
            ranks.compare(found)
    except (TableError, InputError):
        raise
    except Exception as error:
        JOURNAL.error(f"session: {type(error).__name__}: {error}")
        session.log.warning("gemmdb is off for this compile: %s", error)
        return None
    if found is None:
        return None
    made = slots(found)
    session.hold()
    return made


def slots(of: session.Session) -> Mapping[str, Any]:
    """Our passes by slot for one session. Within a compile each product is looked up until it is answered once."""
    of = session.remembering(of)
    apart = taken_apart.TakenApart(of)
    post_grad = passes.PostGradPass(of, apart)
    return {"joint_custom_pre_pass": passes.JointPass(of, post_grad), "post_grad_custom_post_pass": post_grad}


@PHASES("report")
def _add(text: str | None, artefact: Any) -> None:
    JOURNAL.add(text, artefact)


def _take() -> str:
    BENCHMARKS.tick()
    return JOURNAL.take()


def _after(ok: bool) -> None:
    session.release()
    BENCHMARKS.tick()
    # A graph that became an artefact took its events along. The rest belongs to AOTInductor, or to a failure.
    if ok:
        JOURNAL.add(JOURNAL.take())
    else:
        JOURNAL.drop()
