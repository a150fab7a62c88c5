"""`on_miss="live"`: the missed products of a graph are tuned now, and what was measured is kept in the user's table.

ATen and at most four proposed configs are measured by the generator, in processes of its own
(`generators/live/client.py`). For a symbolic size, or without the generator's libraries, Inductor searches as it does
by itself, for this product only, and what it timed is kept; but only where the policy leaves the time for it
(`rules.py`).
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

import torch

from gemmdb.devices import detect
from gemmdb.inductor.journal import JOURNAL
from gemmdb.inductor.lower import legality
from gemmdb.inductor.session import Decision
from gemmdb.inductor.session_factory import refusal
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import installed
from gemmdb.ladder.ask import Ask
from gemmdb.ladder.candidates import candidates as likely
from gemmdb.ladder.model import uncovered
from gemmdb.ladder.policy_filter import gain, objection
from gemmdb.settings import ASKED_S
from gemmdb.table.measurement import COPIED_BYTES, COPIES
from gemmdb.table.verdict import Verdict

log = logging.getLogger("gemmdb")
FREE_BYTES = 4 * 2**30
"""With less memory free on the GPU nothing is measured."""
BESIDE_BYTES = 2**31
"""What a process takes for its context, and kernels for workspaces."""
EXACT = 16
"""Bytes that the exact result takes for each element of the weight: it and its square in double precision."""
PROPOSALS = 4
"""Configs that are measured besides ATen."""
GENERATOR = "gemmdb.generators.live.client"
"""It lives above this layer, and only this path needs it."""

_expected = -math.inf
"""When live tuning was last foreseen."""
AGAIN_S = 30.0
_late = ""
"""Why nothing more is tuned in this process: its own measuring came to nothing before."""


def expect(query: Query) -> None:
    """Begin to start what `tune` will need, which takes seconds: a product of the graph being compiled was found to be
    one that no table answers, before all of them are known."""
    global _expected
    if _expected < monotonic() - AGAIN_S and not hindrance(query.device):
        _expected = monotonic()
        with contextlib.suppress(ImportError):
            importlib.import_module(GENERATOR).start(query.device, _gpu(query.device))


def tune(decisions: Sequence[Decision]) -> None:
    """Decide products that no table answers, those of one graph together: by what is measured now, or as without live
    tuning where nothing can be. Those that Inductor is to search stay undecided. Never raises, and leaves random states
    alone."""
    groups: dict[Device, list[Decision]] = defaultdict(list)
    for decision in decisions:
        symbolic = any(low != high for low, high in decision.query.ranges.values())
        if decision.session.user_table is not None and not symbolic:
            groups[decision.query.device].append(decision)
    for device, group in groups.items():
        try:
            hindered = hindrance(device)
            generator = None if hindered else importlib.import_module(GENERATOR)
        except ImportError as error:
            log.info("live tuning needs gemmdb[build]: %s", error)
            continue
        for decision in group if hindered else ():
            _instead(decision, str(hindered))
        if generator is not None:
            _measure(generator, _with_room(device, group))


def _with_room(device: Device, group: Sequence[Decision]) -> list[Decision]:
    """The products that the device has memory to measure; the others are decided as without live tuning."""
    if device.kind != "cuda":
        return list(group)
    free, _ = torch.cuda.mem_get_info(_gpu(device))
    room = []
    for decision in group:
        needed = bytes_needed(decision.problem)
        if needed <= free:
            room.append(decision)
        else:
            _instead(decision, f"only {free >> 20} MiB are free on the GPU, measuring it takes {needed >> 20}")
    return room


def bytes_needed(problem: Problem) -> int:
    """What measuring a product takes of a GPU's memory: copies of its operands, and what its exact result needs."""
    once = problem.bytes
    return BESIDE_BYTES + max(once, min(COPIES * once, COPIED_BYTES)) + EXACT * problem.n * problem.k


def _measure(generator: Any, group: Sequence[Decision]) -> None:
    """Decide products of one device by what the generator measures."""
    global _late
    if not group:
        return
    session, device = group[0].session, group[0].query.device
    limit_s = session.policy.live_s or ASKED_S
    start = monotonic()
    try:
        gpu, proposed, table = _gpu(device), proposals(group), session.user_table
        requests = [
            generator.Request(problem, device, table, configs, gpu=gpu, policy=session.policy)
            for problem, configs in proposed.items()
        ]
        tuned = generator.tune(requests, limit_s)
    except Exception as error:
        text = f"live tuning: {type(error).__name__}: {error}"
        JOURNAL.error(text)
        log.warning("%s", text)
        for decision in group:
            _instead(decision, text)
        return
    shared = {"problems": len(requests), "seconds": round(monotonic() - start, 3), "device_s": tuned.device_s}
    if tuned.late and not tuned.verdicts and not tuned.waited:
        _late = f"{limit_s:.0f} s were not enough for live tuning before"
    elif tuned.late:
        # The next process is to go on from here. Where nothing came of it, a cached graph is better than another try.
        JOURNAL.provisional = True
    for decision in group:
        found = tuned.verdicts.get(decision.problem)
        if found is None:
            late = f"{limit_s:.0f} s were not enough" if tuned.late else "ATen could not be measured"
            _instead(decision, tuned.declined.get(decision.problem, late))
        else:
            _decide(decision, found, [config.text for config in proposed[decision.problem]], shared)


def proposals(group: Sequence[Decision]) -> dict[Problem, tuple[Config, ...]]:
    """By problem, the configs that are likely to be the best, best first, that Inductor can carry out: by the measured
    neighbours and by the cost model; none when neither knows it, and the generator's menu is to be tried."""
    return {decision.problem: _proposals(decision) for decision in group}


def _proposals(decision: Decision) -> tuple[Config, ...]:
    query, session = decision.query, decision.session
    policy = session.policy
    policy = replace(policy, compile_cost=min(policy.compile_cost, policy.live_cost))
    ask = Ask(query, tuple(session.tables()), policy, installed(query.device.kind))
    fits = [c for c in likely(ask) if legality.objection(c, query) is None]
    if uncovered(query.problem):
        return tuple(fits[:PROPOSALS])  # Where rows are not aligned, padding and Inductor's templates are the best.
    # What only Inductor can make is compiled by processes that have to load torch first, which takes seconds.
    ours = [c for c in fits if not c.spec.emitted]
    return tuple((ours or fits)[:PROPOSALS])


def hindrance(device: Device) -> str | None:
    """Why nothing may be measured on the device now, None when it may."""
    if _late:
        return _late
    if device.kind != "cuda":
        return None
    if torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    free, _ = torch.cuda.mem_get_info(_gpu(device))
    return f"only {free >> 20} MiB are free on the GPU" if free < FREE_BYTES else None


def _gpu(device: Device) -> int:
    """The number of a GPU that is this device, the current one if it is; 0 for a CPU."""
    if device.kind != "cuda":
        return 0
    now = int(torch.cuda.current_device())
    numbers = (now, *range(torch.cuda.device_count()))
    return next((number for number in numbers if detect.cuda(number) == device), now)


def _instead(decision: Decision, why: str) -> None:
    """What is served where live tuning is off: the event says why that is so here."""
    event, query = decision.event, decision.query
    try:
        hit = decision.session.otherwise(query)
    except Exception as error:
        JOURNAL.error(f"lookup: {type(error).__name__}: {error}")
        hit = None
    if hit is None or hit.branches or refusal(hit, query):
        decision.config, event.rung = ATEN, "aten"
    else:
        decision.config, event.rung, event.table = hit.config, hit.rung, hit.table
        event.expected_us, event.speedup, event.evidence = hit.expected_us, hit.speedup, hit.evidence
    event.config, event.note = decision.config.text, f"not tuned: {why}"


def _decide(decision: Decision, found: Verdict, proposed: list[str], shared: dict[str, Any]) -> None:
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
        "tuning": shared,
    }
