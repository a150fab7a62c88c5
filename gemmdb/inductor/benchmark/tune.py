"""`on_miss="live"`: tunes the missed GEMMs of a graph during the compile, and stores the timings in the user table.

The generator measures ATen and at most LIVE_CANDIDATES other configs in separate processes (`client.py`). GEMMs with a
symbolic size, and all GEMMs if the generator's libraries are missing, are left to Inductor's search
(`inductor_search.py`). `rules.py` lists what is never tuned.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from time import monotonic
from typing import Any

import torch

from gemmdb.devices import detect
from gemmdb.hit import gain
from gemmdb.inductor.benchmark import client, limits, payoff, rules
from gemmdb.inductor.benchmark.limits import BUDGET
from gemmdb.inductor.decide import deciding, legality
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.decide.session import Mode, Session
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import installed
from gemmdb.lookup.ask import Ask
from gemmdb.rejected import Rejected
from gemmdb.table.measurement import COPIED_BYTES, COPIES
from gemmdb.table.verdict import Verdict

log = logging.getLogger("gemmdb")
FREE_BYTES = 4 * 2**30
"""Minimum free GPU memory for measuring."""
BESIDE_BYTES = 2**31
"""Memory that a measuring process uses in addition to the operands: its CUDA context and kernel workspaces."""
EXACT = 16
"""Bytes of the exact result per weight element: the element and its square in double precision."""
IDLE = 6
"""Bytes per weight element of all groups, including empty ones: the random number and its rounded value."""

_expected = -math.inf
"""Time at which live tuning was last expected."""
_late: Rejected | None = None
"""Why this process stops tuning: its first attempt hit the time limit without a result."""


def forget_lateness() -> None:
    """Tune again, as a new process does."""
    global _late
    _late = None


def expect(session: Session, queries: Sequence[Query]) -> None:
    """Start the process for `tune`, which takes seconds, if tuning the missed GEMMs pays off. Called as soon as the
    GEMMs of a graph are known; it does no harm if one still changes."""
    global _expected
    if not queries or _expected >= monotonic() - limits.RESTART_S or rules.missing_library():
        return
    device = queries[0].device
    here = [query for query in queries if query.device == device]
    if _is_worthwhile(session, here, only_missed=True):
        _expected = monotonic()
        client.start(device, _gpu(device))


def expects(session: Session, query: Query, count: int) -> bool:
    """Return whether `tune` will measure a missed GEMM that its graph contains `count` times."""
    return _is_worthwhile(session, [query] * count, only_missed=False)


def _is_worthwhile(session: Session, queries: Sequence[Query], only_missed: bool) -> bool:
    """Return whether these GEMMs of one device, or the missed ones, may be tuned and are worth it."""
    ready = client.ready()
    if not queries or device_rejection(device := queries[0].device) or not limits.tuning_s(session.policy, 1, ready):
        return False
    missed = (lambda query: session.find(query) is None) if only_missed else (lambda query: True)
    return payoff.pays(session, queries, ready, missed) and not payoff.load_rejection(device, session.policy)


def tune(decisions: Sequence[Decision]) -> list[Decision]:
    """Tune the missed GEMMs of one graph and return their decisions; a GEMM that cannot be measured is decided as
    without live tuning. GEMMs left to Inductor's search stay undecided. Never raises, and keeps random states
    unchanged."""
    groups: dict[Device, list[Decision]] = defaultdict(list)
    for decision in decisions:
        if decision.session.user_table is not None and not decision.query.symbolic:
            groups[decision.query.device].append(decision)
    if groups and (library := rules.missing_library()):
        log.info("live tuning needs gemmdb[build]: %s is not installed", library)
        return list(decisions)
    decided = {one.entry: one for device, group in groups.items() for one in _tuned(device, group)}
    return [decided.get(decision.entry, decision) for decision in decisions]


def _tuned(device: Device, group: Sequence[Decision]) -> list[Decision]:
    """Like `tune`, for GEMMs of one device."""
    if rejected := device_rejection(device):
        return [_untuned(decision, rejected) for decision in group]
    taken, left = payoff.chosen(group, client.ready())
    found = [_untuned(decision, left[decision.problem]) for decision in group if decision.problem in left]
    room, rest = _with_room(device, taken)
    busy = payoff.load_rejection(device, group[0].session.policy) if room else None
    return found + rest + ([_untuned(decision, busy) for decision in room] if busy else _measure(room))


def _with_room(device: Device, group: Sequence[Decision]) -> tuple[list[Decision], list[Decision]]:
    """Return (GEMMs for which the device has enough memory, the others, decided as without live tuning)."""
    if device.kind != "cuda":
        return list(group), []
    free, _ = torch.cuda.mem_get_info(_gpu(device))
    room, rest = [], []
    for decision in group:
        needed = bytes_needed(decision.problem)
        if needed <= free:
            room.append(decision)
        else:
            why = f"only {free >> 20} MiB are free on the GPU, measuring it takes {needed >> 20}"
            rest.append(_untuned(decision, why))
    return room, rest


def bytes_needed(problem: Problem) -> int:
    """Return the GPU memory needed to measure a GEMM: copies of its operands and its exact result."""
    once, matrix = problem.bytes, problem.n * problem.k
    idle = IDLE * problem.groups * matrix if problem.ragged == "m" else 0
    return BESIDE_BYTES + max(once, min(COPIES * once, COPIED_BYTES)) + EXACT * matrix + idle


def _measure(group: Sequence[Decision]) -> list[Decision]:
    """Measure GEMMs of one device with the generator and return their decisions."""
    if not group:
        return []
    session, device = group[0].session, group[0].query.device
    start, ready = monotonic(), client.ready()
    limit_s = limits.tuning_s(session.policy, len({d.problem for d in group}), ready)
    if limit_s <= 0:
        return [_untuned(decision, limits.exhausted(session.policy)) for decision in group]
    try:
        assert session.user_table is not None
        gpu, policy, table = _gpu(device), session.policy, session.user_table
        tried = {decision.problem: candidates(session, decision.query) for decision in group}
        device_s, compile_s = limits.problem_s(policy)
        requests = [
            client.Request(problem, device, table, configs, device_s, gpu, policy, compile_s)
            for problem, configs in tried.items()
        ]
        log.info("%s", _announced(len(requests), limit_s))
        with nullcontext() if limits.is_patient(session.policy) else BUDGET.spending():
            tuned = client.tune(requests, limit_s)
    except Exception as error:
        text = f"live tuning: {type(error).__name__}: {error}"
        JOURNAL.error(text)
        log.warning("%s", text)
        return [_untuned(decision, text) for decision in group]
    seconds, spent = round(monotonic() - start, 3), dict(tuned.spent)
    log.info("live tuning ended after %.1f s%s", seconds, _waited(spent))
    shared = {"problems": len(requests), "seconds": seconds, "device_s": tuned.device_s, "spent": spent}
    _note_lateness(tuned, limit_s, ready)
    decided = []
    for decision in group:
        found = tuned.verdicts.get(decision.problem)
        if found is None:
            late = f"{limit_s:.0f} s were not enough" if tuned.late else "ATen could not be measured"
            decided.append(_untuned(decision, tuned.declined.get(decision.problem, late)))
        else:
            texts = [config.text for config in tried[decision.problem]]
            decided.append(_by_verdict(decision, found, {"proposals": texts, "tuning": shared}))
    return decided


def _announced(number: int, limit_s: float) -> str:
    """Return one line about what the compile waits for."""
    waits = "" if client.ready() else " It first waits for the measuring process to start."
    problems = "1 problem is" if number == 1 else f"{number} problems are"
    return f"live tuning: the compile waits {limit_s:.0f} s at most, while {problems} measured.{waits}"


def _waited(spent: Mapping[str, float]) -> str:
    """Describe how the time was spent; empty if unknown."""
    words = {"start": "waiting for the process", "compile": "for compilers", "measure": "measuring"}
    known = [f"{spent[name]:.1f} s {word}" for name, word in words.items() if name in spent]
    return f": {', '.join(known)}" if known else ""


def _note_lateness(tuned: client.Tuned, limit_s: float, ready: bool) -> None:
    """If the time limit was hit, let the next process continue from here if there was a result, and stop tuning if this
    process has none at all. A process that was still starting will be ready for the next graph. In both cases without a
    result, a cached graph is better than another attempt. `ready`: earlier GEMMs were measured in time."""
    global _late
    if tuned.starting:
        return
    if tuned.late and not tuned.verdicts and not tuned.waited:
        _late = _late if ready else Rejected(f"{limit_s:.0f} s were not enough for live tuning before")
    elif tuned.late:
        JOURNAL.provisional = True


def candidates(session: Session, query: Query) -> tuple[Config, ...]:
    """Return the configs to measure, most promising first, ranked by measured neighbours and the cost model. Only
    configs that Inductor can lower. Empty if neither covers the problem: the generator then uses its own candidates."""
    from gemmdb.lookup.acceptance.tuning import candidates as likely  # These import the cost model.
    from gemmdb.lookup.ranking import LIVE_CANDIDATES, uncovered

    fits = [c for c in likely(payoff.ask_of(session, query)) if legality.rejection(c, query) is None]
    if uncovered(query.problem) and limits.is_patient(session.policy):
        # For unaligned rows, padding and Inductor's templates are fastest.
        return tuple(fits[:LIVE_CANDIDATES])
    # Processes that compile Inductor's own kernels have to load torch first, which takes seconds.
    ours = [c for c in fits if not c.spec.emitted]
    return tuple((ours or fits)[:LIVE_CANDIDATES])


def device_rejection(device: Device) -> Rejected | None:
    """Return why nothing may be measured on the device now."""
    if found := _late or rules.device_rejection(device):
        return found
    if device.kind != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(_gpu(device))
    return Rejected(f"only {free >> 20} MiB are free on the GPU") if free < FREE_BYTES else None


def _gpu(device: Device) -> int:
    """Return the index of a GPU that matches this device, preferably the current one; 0 for a CPU."""
    if device.kind != "cuda":
        return 0
    now = int(torch.cuda.current_device())
    numbers = (now, *range(torch.cuda.device_count()))
    return next((number for number in numbers if detect.cuda(number) == device), now)


def _untuned(decision: Decision, why: object) -> Decision:
    """Decide as without live tuning; the event's note contains the reason."""
    return deciding.decide_again(decision, Mode.UNTUNED, f"not tuned: {why}")


def _by_verdict(decision: Decision, found: Verdict, evidence: dict[str, Any]) -> Decision:
    """Decide for the verdict's pick, or the first of its ties, that the policy serves and Inductor can lower; else for
    ATen. `evidence`: added to the verdict's evidence."""
    query, policy = decision.query, decision.session.policy
    ask = Ask(query, (), policy, installed(query.device.kind))
    picks = (c for c in found.ties if c != ATEN and ask.rejection(c) is None and not legality.rejection(c, query))
    config = next(picks, ATEN) if found.pick != ATEN and gain(found.ratio) >= policy.min_gain else ATEN
    ratio = 1.0 if config == ATEN else found.ratio
    known = {
        "protocol": found.protocol.text,
        "pick": found.pick.text,
        "ties": [one.text for one in found.ties],
        "aten_us": found.aten_us,
    }
    event = replace(
        decision.event, config=config.text, expected_us=ratio * found.aten_us, speedup=1 / ratio,
        table=str(decision.session.user_table), evidence={**known, **evidence},
    )  # fmt: skip
    return replace(decision, config=config, event=event)
