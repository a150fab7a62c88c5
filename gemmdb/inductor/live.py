"""`on_miss="live"`: a missed product is tuned now, and what was measured is kept in the user's table.

ATen and at most four proposed configs are measured by the generator, in processes of its own (`generators/live.py`).
Where that is not possible, for a symbolic size or without the generator's libraries, Inductor searches as it does by
itself, for this product only, and what it timed is kept.
"""

from __future__ import annotations

import importlib
import logging
import threading
import uuid
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch

from gemmdb.catalog import Catalog
from gemmdb.config import ATEN, Config
from gemmdb.errors import InputError
from gemmdb.inductor import legality
from gemmdb.inductor.adapter import hooks, state
from gemmdb.inductor.journal import JOURNAL
from gemmdb.inductor.session import Decision
from gemmdb.ladder.ask import Ask
from gemmdb.ladder.gate import gain, objection
from gemmdb.ladder.model import propose
from gemmdb.ladder.near import forecast_near
from gemmdb.measurement import Measurement, Protocol, Status, Times
from gemmdb.settings import Settings
from gemmdb.toolchain import installed
from gemmdb.verdict import Verdict

log = logging.getLogger("gemmdb")
PROTOCOL = Protocol("host", "hot", 1, 10, version=1)
"""What Inductor does on a CPU: calls in a row, by the wall clock."""
SPREAD = 0.05
"""Inductor tells one number per choice and nothing of its interval: half of it is taken to be the gain that a default
policy asks of what it cannot verify, so that two choices closer than twice that are tied."""

FREE_BYTES = 4 * 2**30
"""With less memory free on the GPU nothing is measured: operands are copied many times, and kernels need workspaces."""
PROPOSALS = 4
"""Configs that are measured besides ATen."""
GENERATOR = "gemmdb.generators.live"
"""It lives above this layer, and only this path needs it."""

_searching = threading.local()
_run = f"live-{uuid.uuid4().hex[:16]}"


def register() -> None:
    """Hear of every choice list that Inductor times. Idempotent."""
    hooks.on_timings(_keep)


def tune(decision: Decision) -> bool:
    """Decide a product that no table answers: what was measured now, ATen where nothing may be measured at this moment.
    False where Inductor is to search; then nothing is decided. Never raises, and leaves random states alone."""
    event, query = decision.event, decision.query
    table = decision.session.user_table
    if table is None or any(low != high for low, high in query.ranges.values()):
        return False
    hindered = _hindrance(query.device.kind)
    if hindered:
        decision.config, event.config, event.note = ATEN, ATEN.text, f"not tuned: {hindered}"
        return True
    try:
        generator = importlib.import_module(GENERATOR)
    except ImportError as error:
        log.info("live tuning needs gemmdb[build]: %s", error)
        return False
    try:
        lane = torch.cuda.current_device() if query.device.kind == "cuda" else 0
        proposed = proposals(decision)
        found = generator.tune(generator.Request(query.problem, query.device, table, proposed, lane=lane))
    except Exception as error:
        JOURNAL.error(f"live tuning: {type(error).__name__}: {error}")
        log.warning("live tuning of %s: %s", query.problem.text, error)
        return False
    if found is None:
        return False
    _decide(decision, found, [config.text for config in proposed])
    return True


def proposals(decision: Decision) -> tuple[Config, ...]:
    """The configs that are likely to be the best, best first, that Inductor can carry out: by the measured neighbours,
    else by the cost model; empty when neither knows the problem, and the generator's menu is to be tried."""
    query, policy = decision.query, decision.session.policy
    catalog = Catalog.load(Settings.read())
    try:
        ask = Ask(query, catalog.tables, policy, installed(query.device.kind))
        forecast = forecast_near(ask)
        modelled = propose(ask)
        known = [] if isinstance(forecast, str) else forecast.proposals(2 * PROPOSALS)
        known += [] if isinstance(modelled, str) else [one.config for one in modelled.best]
    finally:
        catalog.close()
    fits = (config for config in dict.fromkeys(known) if legality.objection(config, query) is None)
    return tuple(islice(fits, PROPOSALS))


def _hindrance(kind: str) -> str | None:
    """Why nothing may be measured on the device now, None when it may."""
    if kind != "cuda":
        return None
    if torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    free, _ = torch.cuda.mem_get_info()
    return f"only {free >> 20} MiB are free on the GPU" if free < FREE_BYTES else None


def _decide(decision: Decision, found: Verdict, proposed: list[str]) -> None:
    """What the verdict picks, where the policy lets it through and Inductor can carry it out; else ATen."""
    query, policy, event = decision.query, decision.session.policy, decision.event
    ask = Ask(query, (), policy, installed(query.device.kind))
    picks = (c for c in found.ties if c != ATEN and objection(ask, c) is None and not legality.objection(c, query))
    config = next(picks, ATEN) if found.pick != ATEN and gain(found.ratio) >= policy.min_gain else ATEN
    ratio = 1.0 if config == ATEN else found.ratio
    decision.config, event.config = config, config.text
    event.expected_us, event.speedup = ratio * found.aten_us, 1 / ratio
    event.table = str(decision.session.user_table)
    event.evidence = {
        "protocol": found.protocol.text,
        "pick": found.pick.text,
        "ties": [one.text for one in found.ties],
        "aten_us": found.aten_us,
        "proposals": proposed,
    }


def search(decision: Decision, lower: Callable[[], Any]) -> Any:
    """Lower one product with Inductor's search, and keep what it timed."""
    _searching.decision = decision
    try:
        with state.searching():
            result = lower()
    finally:
        _searching.decision = None
    if not decision.event.config:
        decision.event.config, decision.event.note = ATEN.text, "Inductor had one choice: nothing to search"
    return result


def _keep(timings: dict[Any, float]) -> None:
    """Store the timings of the product being searched. Never fails the compile."""
    decision = getattr(_searching, "decision", None)
    if decision is None:
        return
    try:
        rows = measurements(decision, timings)
        if not rows:
            return
        best = min(rows, key=lambda row: row.times.median_us if row.times else float("inf"))
        decision.event.config = best.config.text
        if decision.session.user_table is not None:
            # The writer lives above this layer, and only this path needs it.
            store = importlib.import_module("gemmdb.generators.store")
            store.record_live(decision.session.user_table, rows)
    except Exception as error:
        JOURNAL.error(f"live timings: {type(error).__name__}: {error}")
        log.warning("live timings of %s were not stored: %s", decision.problem.text, error)


def measurements(decision: Decision, timings: dict[Any, float]) -> list[Measurement]:
    """One row per timed choice that a Config can name; none without a timed ATen choice to compare with.

    `timings`: choice -> milliseconds, infinite for a choice that failed.
    """
    named = [(_config(choice), ms * 1000) for choice, ms in timings.items()]
    reference = next((us for config, us in named if config == ATEN and us < 1e9), None)
    toolchain = installed(decision.query.device.kind)
    if reference is None or toolchain is None:
        return []
    rows = []
    for config, us in named:
        if config is None:
            continue
        failed = not 0 < us < 1e9
        low, high = us * (1 - SPREAD), us * (1 + SPREAD)
        times = None if failed else Times(float(us), float(low), float(high), 1, float(reference))
        status = Status.ERROR if failed else Status.OK
        query = decision.query
        rows.append(Measurement(query.problem, config, query.device, PROTOCOL, toolchain, _run, status, times))
    return rows


def _config(choice: Any) -> Config | None:
    """The Config that names a choice of Inductor's, None for a kernel that the registry does not know."""
    kind = type(choice).__name__
    if kind == "ExternKernelCaller":
        return ATEN
    if "Cpp" in kind or "DataProcessor" in kind:
        blocking = {f"{what}_{dim}": 0 for what in ("threads", "blocks") for dim in "mnk"}
        try:
            return Config.of("cpp", "packed_gemm", **blocking)
        except InputError:
            return None
    return None
