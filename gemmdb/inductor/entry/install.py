"""Installs gemmdb into a loaded Inductor."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from gemmdb.errors import InputError, TableError
from gemmdb.inductor.benchmark import inductor_search as searching
from gemmdb.inductor.decide import uncompiled
from gemmdb.inductor.decide.session import Session
from gemmdb.inductor.entry import active
from gemmdb.inductor.entry.engine_gemms import EngineGemms
from gemmdb.inductor.entry.joint_pass import JointPass
from gemmdb.inductor.entry.open_ops import opened
from gemmdb.inductor.entry.post_grad_pass import PostGradPass
from gemmdb.inductor.lower import lowering, padding
from gemmdb.inductor.lower.adapter import codegen, cutlass, decomposition, hooks, patches, prebuilt_kernels, rows, state
from gemmdb.inductor.lower.adapter.slots import code_digest, frozen
from gemmdb.inductor.lower.decomposed import DecomposedGemms
from gemmdb.inductor.observe import invariance, summary
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.inductor.observe.stats import BENCHMARKS
from gemmdb.phases import PHASES

log = logging.getLogger("gemmdb")
_lock = threading.Lock()
_registered = False
_compared: set[str] = set()
"""Identities of sessions that were already compared with other ranks."""


def install() -> None:
    """Apply all registered patches. Idempotent; without an active session the wrappers pass everything through."""
    global _registered
    with _lock:
        if not _registered:
            lowering.register()
            BENCHMARKS.reader = state.benchmarks
            BENCHMARKS.clear()
            JOURNAL.listeners += [summary.log_graph, invariance.warn]
            _registered = True
        patches.apply(_wrappers())


def _wrappers() -> Mapping[str, patches.Wrapper]:
    """Return the wrappers for the registered patches, by name."""
    return {
        "compile_fx": partial(hooks.with_passes, choose=bodies, after=_after),
        "codegen": partial(hooks.with_another_attempt, attempt=partial(uncompiled.attempt, frozen=frozen)),
        "graph_init": partial(hooks.keeping_events, take=_take, stored=_stored),
        "graph_ready": partial(hooks.reporting, add=PHASES("report")(JOURNAL.add)),
        "save_graph": hooks.where_allowed,
        "tracing": decomposition.tracing,
        "replacing": decomposition.replacing,
        "lowering": lowering.as_decided,
        "should_pad": partial(
            hooks.unless_padding_is_answered, answered=lambda node: padding.answered(active.current(), node)
        ),
        "fusion_score": codegen.scoring_any_loops,
        "codegen_template": rows.choosing,
        "define_kernel": codegen.keeping_names,
        "zeroing": codegen.zeroing_counters_only,
        "cutlass_headers": cutlass.with_our_headers,
        "cuda_compile": prebuilt_kernels.with_prebuilt,
        "system": partial(hooks.naming_tables, identity=_system),
        "timings": lambda _: searching.keep,
    }


def bodies() -> Mapping[str, Any] | None:
    """Return our passes by slot for the active session, None without one. Called at the start of a compile.

    Unreadable tables cause a warning, and fail the compile only in strict mode."""
    BENCHMARKS.tick()
    try:
        with PHASES("tables"):
            session = active.current()
        if session is not None:
            compare_ranks(session)
            JOURNAL.frozen = session.frozen_to()
    except (TableError, InputError):
        raise
    except Exception as error:
        JOURNAL.error(f"session: {type(error).__name__}: {error}")
        log.warning("gemmdb is off for this compile: %s", error)
        return None
    if session is None:
        return None
    made = slots(session)
    active.hold()
    return made


def slots(session: Session) -> Mapping[str, Any]:
    """Return our passes by slot for one session. Within a compile each GEMM is looked up until it hits once."""
    session = session.remembering()
    post_grad = PostGradPass(session, DecomposedGemms(session), EngineGemms(session, opened()))
    return {"joint_custom_pre_pass": JointPass(session, post_grad), "post_grad_custom_post_pass": post_grad}


def compare_ranks(session: Session) -> None:
    """Compare a session's identity with that of the first rank to compile, once per identity and process: all ranks of
    a job must choose the same kernels.

    A mismatch is logged as a warning and added to `stats()["errors"]`; with `on_miss="error"` it raises TableError.
    """
    identity = session.identity
    if identity is None or identity in _compared:
        return
    # Policies may differ on purpose, so each policy has its own entry.
    own = _digest(identity)
    found = state.first_rank(f"gemmdb/{_digest(session.policy.text)}", own)
    if found is None:
        return
    _compared.add(identity)
    rank, first = found
    if first == own:
        return
    text = (
        f"rank {rank} uses other tables than the first rank that compiled, so ranks may run different kernels: "
        "set the same GEMMDB_TABLES and GEMMDB_USER_TABLE on all ranks"
    )
    if session.policy.on_miss == "error":
        raise TableError(text)
    JOURNAL.error(text)
    log.warning("%s", text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _system() -> str:
    """Return what compiled code depends on besides torch and the GPU: our code, the policy and the tables. Empty
    without gemmdb, or if the tables cannot be read."""
    try:
        session = active.requested()
        return "" if session is None or session.identity is None else f"{code_digest()} {_digest(session.identity)}"
    except Exception:
        log.debug("gemmdb: the tables are not part of this key", exc_info=True)
        return ""


def _stored() -> hooks.Stored:
    if JOURNAL.bound:
        return hooks.Stored.NOWHERE
    return hooks.Stored.BY_PROGRAM if JOURNAL.provisional else hooks.Stored.EVERYWHERE


def _take() -> str:
    BENCHMARKS.tick()
    session = active.current() if JOURNAL.pending() else None  # Without events, it may not even open.
    return JOURNAL.take(session is not None and session.policy.batch_invariant)


def _after(ok: bool) -> None:
    active.release()
    # A graph that became an artefact took its events with it. The rest belong to AOTInductor or a failed compile.
    if ok:
        JOURNAL.add(_take())
    else:
        BENCHMARKS.tick()
        JOURNAL.drop()
