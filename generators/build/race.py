"""The race: how thoroughly to measure each candidate of a problem. Its only side effects are those of the Measurer
passed in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from gemmdb.generators.backend import Job, Measurer, Outcome
from gemmdb.generators.effort import Effort
from gemmdb.generators.measure.quiet import judged
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.triton import ZEROING_US, counts_arrivals
from gemmdb.table.measurement import EMITTED, NOISY, UNSAFE, Status, Times
from gemmdb.table.verdict import Pooled, best, together

SUSPECT_RATIO = 0.5
"""A candidate this much faster than ATen, or than the runner-up, is measured again before it is trusted."""
MAX_CONFIRMED = 5
"""Most configs of a problem that are confirmed one after another."""
MAX_RIVAL_COST = 1
"""Configs other than the pick are confirmed only up to this compile cost (`Kernel.cost`): nvcc takes half a minute."""
RIVAL_SHARE, RIVAL_US, MAX_RIVAL_SHARE = 0.02, 0.4, 0.1
"""How much slower than the fastest a rival may be (relative): RIVAL_SHARE plus RIVAL_US microseconds, at most
MAX_RIVAL_SHARE: about two standard deviations of the difference between emitted code and the kernel alone. Of 2,600
configs on an H200, the middle two thirds differed by less than 4.7% for kernels of 4 to 6 us, 3.5% up to 16 us, 1.8% up
to 40 us."""


def race(job: Job, effort: Effort, measurer: Measurer) -> list[Outcome]:
    """Return the outcomes of a job, one per candidate and per config that is tried besides them.

    Every candidate gets an outcome, independent of the others. So timing noise does not decide which (problem, config)
    pairs a table contains, only whether a correct candidate is `ok` or `slow`. ATen is always measured in full.
    """
    if not job.legal:
        return illegal(job)
    estimates = _estimates(job, effort, measurer)
    failed = [outcome for outcome in estimates if outcome.times is None]
    alive = [outcome for outcome in estimates if outcome.times is not None]
    finalists = _survivors(alive, effort)
    slow = [replace(outcome, status=Status.SLOW) for outcome in alive if outcome.config not in finalists]
    full = _measure(job, finalists, effort, measurer)
    if any(outcome.times and outcome.times.spread > NOISY for outcome in full):
        again = {o.config: o for o in _measure(job, finalists, effort, measurer)}
        full = [_one_of(min, o, again[o.config], lambda times: times.spread) for o in full]
    doubtful = _too_good(full)
    if doubtful:
        again = {o.config: o for o in _measure(job, doubtful, effort, measurer)}
        full = [
            _one_of(max, outcome, again.get(outcome.config, outcome), lambda times: times.ratio) for outcome in full
        ]
    compile_s = {outcome.config: outcome.compile_s for outcome in estimates}
    full = [o if o.compile_s is not None else replace(o, compile_s=compile_s[o.config]) for o in full]
    return illegal(job) + failed + slow + judged(full)


def _estimates(job: Job, effort: Effort, measurer: Measurer) -> list[Outcome]:
    """Return the estimates of the candidates, of what a library on the device proposes, and of configs like its
    best."""

    def estimated(configs: Iterable[Config]) -> dict[Config, Outcome]:
        tried = list(dict.fromkeys(configs))
        return {o.config: o for o in measurer.measure(job.problem, tried, job.protocol, effort.estimate)}

    first = estimated((*job.legal, *filter(job.accepts, measurer.proposed(job.problem))))
    near = list(filter(job.accepts, measurer.near(job.problem, list(first.values()))))
    if not near:
        return list(first.values())
    # Those still in the race are timed again: times compare within the same minutes, and they stay loaded.
    alive = _survivors([outcome for outcome in first.values() if outcome.times], effort)
    return list((first | estimated((*alive, *near))).values())


def illegal(job: Job) -> list[Outcome]:
    """Return the outcomes of the candidates that a legality rule excludes."""
    return [Outcome(c.config, Status.ILLEGAL, detail=c.rejected.reason) for c in job.candidates if c.rejected]


def winner(outcomes: Iterable[Outcome]) -> Config | None:
    """Return the config that a verdict on these outcomes would pick; None for ATen or no verdict. If a config was timed
    as emitted code, its other times do not count."""
    by_config: dict[Config, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.status is Status.OK and outcome.times:
            by_config[outcome.config].append(outcome)
    if ATEN not in by_config:
        return None
    pooled = []
    for config, found in by_config.items():
        counted = [o for o in found if o.detail == EMITTED] or found
        counted = [o for o in counted if not o.disturbed] or counted
        if config.spec.measured_only or (config != ATEN and counted[0].disturbed):
            continue
        pooled.append(Pooled(config, *together([o.times for o in counted if o.times], config), ()))
    pick = best(sorted(pooled, key=lambda one: (one.ratio, one.order)))[0].config
    return None if pick == ATEN else pick


def unconfirmed(outcomes: Sequence[Outcome], confirmed: Sequence[Outcome], effort: Effort) -> tuple[Config, ...]:
    """Return the configs of a race to confirm next: the verdict's pick together with its rivals. If the `confirmed`
    outcomes change the pick, the new pick follows. Empty if the pick is confirmed or trusted, or after MAX_CONFIRMED
    rounds."""
    again = {outcome.config for outcome in confirmed if outcome.config != ATEN}
    unsafe = {outcome.config for outcome in confirmed if outcome.status in UNSAFE}
    pick = winner(outcome for outcome in (*outcomes, *confirmed) if outcome.config not in unsafe)
    picks = () if pick is None else (pick,)
    close = rivals(outcomes)[: effort.rivals]
    if any(config not in again for config in close):
        # All in one process, since times are comparable within the same minutes. nvcc kernels are not compiled again
        # for that.
        return tuple(dict.fromkeys((*(p for p in picks if p not in again or _cheap(p)), *close)))
    if not again and pick is not None and pick.backend in effort.trusted:
        return ()
    late = len(again) >= MAX_CONFIRMED + effort.rivals
    return () if late or pick in again else picks


def rivals(outcomes: Sequence[Outcome]) -> list[Config]:
    """Return the configs, fastest first, that are cheap to compile and may be the best as emitted code. The race cannot
    rank them."""
    expected = []  # Emitted code's time relative to ATen.
    for o in outcomes:
        if o.status is Status.OK and o.times:
            zeroing = ZEROING_US / o.times.aten_us if counts_arrivals(o.config) else 0.0
            expected.append((o.times.ratio + zeroing, o.config.text, o.config, o.times.aten_us))
    if not expected:
        return []
    ratio, _, _, aten_us = min(expected)
    limit = ratio * (1 + min(RIVAL_SHARE + RIVAL_US / (ratio * aten_us), MAX_RIVAL_SHARE))
    return [config for one, _, config, _ in sorted(expected) if config != ATEN and _cheap(config) and one <= limit]


def confirm(job: Job, configs: Sequence[Config], effort: Effort, measurer: Measurer) -> list[Outcome]:
    """Return the outcomes of ATen and the best configs from one more full measurement, as emitted code where possible.
    They become additional rows. If the emitted code failed, a row records why."""
    emitted = [measurer.emitted(config) for config in configs]
    reference, *found = judged(_measure(job, [ATEN, *emitted], effort, measurer))
    outcomes, alone = [reference], list[Config]()
    for config, code, outcome in zip(configs, emitted, found, strict=True):
        detail = EMITTED if code != config and outcome.status is Status.OK else outcome.detail
        outcomes.append(replace(outcome, config=config, detail=detail))
        if code != config and outcome.status is not Status.OK and outcome.status not in UNSAFE:
            alone.append(config)
    return outcomes + (judged(_measure(job, [ATEN, *alone], effort, measurer)) if alone else [])


def _ranked(outcomes: Iterable[Outcome]) -> list[tuple[Config, Times]]:
    """Return the configs that have times, fastest first."""
    return sorted(((o.config, o.times) for o in outcomes if o.times), key=lambda pair: pair[1].ratio)


def _survivors(estimates: Sequence[Outcome], effort: Effort) -> list[Config]:
    """Return the configs that continue: ATen in all forms, the `keep` fastest, and any that may be within `drop` times
    the best.

    Compares the lower end of a candidate's interval with the upper end of the best one's, so noise alone drops nothing.
    """
    ranked, keep = _ranked(estimates), max(effort.keep, 2)
    limit = effort.drop * ranked[0][1].high_us / ranked[0][1].aten_us if ranked else 0.0
    return [
        config
        for place, (config, times) in enumerate(ranked)
        if config == ATEN or config.spec.measured_only or place < keep or times.low_us / times.aten_us <= limit
    ]


def _too_good(outcomes: Sequence[Outcome]) -> list[Config]:
    """Return the winner, if it takes less than half the time of ATen and of every other config. That is usually an
    error."""
    ranked = _ranked(outcomes)
    if len(ranked) < 2 or ranked[0][0] == ATEN:
        return []
    (winner, first), (_, second) = ranked[:2]
    return [winner] if first.ratio < SUSPECT_RATIO * min(second.ratio, 1.0) else []


def _measure(job: Job, configs: Sequence[Config], effort: Effort, measurer: Measurer) -> list[Outcome]:
    return list(measurer.measure(job.problem, configs, job.protocol, effort.samples)) if configs else []


def _one_of(
    choose: Callable[..., Outcome], first: Outcome, second: Outcome, figure: Callable[[Times], float]
) -> Outcome:
    """Return whichever of two outcomes of a config `choose` (min or max) selects by a statistic of its times; the first
    failed one, if any."""
    failed = next((outcome for outcome in (first, second) if outcome.times is None), None)
    return failed or choose(first, second, key=lambda outcome: figure(outcome.times))


def _cheap(config: Config) -> bool:
    return config.spec.cost <= MAX_RIVAL_COST and not config.spec.measured_only
