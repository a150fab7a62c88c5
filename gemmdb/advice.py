"""What to do after a command that gained nothing: maps the reasons to advice, each with a line to paste. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gemmdb.outcome import GOOD_UP_TO, NO_KERNEL, ONLY_ATEN, Kind, Outcome

FREEZE_LINE = "torch._inductor.config.freezing = True"
MIN_BOUND = 64
"""Smallest upper bound of a batch that is proposed."""
OTHER_DEVICE = "runs on another device"
"""Part of the reason for GEMMs that are measured elsewhere."""
BARS = "too small or too close to the limit"
"""Part of the reason of a plan for GEMMs that cannot gain."""


class Act(StrEnum):
    """Kinds of advice, the most useful first."""

    IDLE = "idle"
    """Run again when the machine is idle."""
    RESUME = "continue"
    """Measure what is left: time ran out, or nothing was to be measured."""
    FREEZE = "freeze"
    """Make the weights constants."""
    BOUND = "bound"
    """Give the batch an upper bound."""
    TIGHTEN = "tighten"
    """Give the batch a smaller upper bound."""
    BUILD = "build"
    """Measure what no table knows."""
    REPEAT = "repeat"
    """Time the program more often: its gain may be chance."""
    UPGRADE = "upgrade"
    """Measure again what another toolchain measured."""
    CHECK = "check"
    """Measure that ATen is the best kernel, which is only predicted."""
    OTHER_DEVICE = "other device"
    """Run the command for the other device."""
    NOTHING = "nothing"
    """ATen is the best known kernel, or the only one."""


@dataclass(frozen=True)
class Advice:
    """One step. `text`: a sentence; `paste`: a command or a line of code, empty if there is nothing to do."""

    act: Act
    text: str
    paste: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.paste}" if self.paste else self.text


@dataclass(frozen=True)
class Situation:
    """What a command knows at its end. `left_out`: number of GEMMs per reason that they were not measured; `unknown`:
    number of GEMMs that no table answers, for other reasons; `best`: number for which ATen was measured to be the best;
    `predicted`: number for which it is predicted to be; `disturbed` of `timed`: timings that other programs disturbed;
    `left`: problems for which there was no time; `command`: repeats this command; `build`: measures what is unknown;
    `largest`: the largest recorded size of a batch without an upper bound, 0 if unknown; `outdated`: number of GEMMs
    for which ATen runs by rows of another toolchain; `unbounded`: number of GEMMs that need constant weights and whose
    batch has no upper bound; `tighter`: what `tighter` returns for each GEMM with such a range;
    `busy`: the use by other programs for which the command stopped;
    `patient`: repeats it when the machine is quiet; `more`: repeats it with more samples, empty unless a difference of
    the times may be chance."""

    left_out: Mapping[str, int] = field(default_factory=dict)
    unknown: int = 0
    best: int = 0
    predicted: int = 0
    disturbed: int = 0
    timed: int = 0
    left: int = 0
    command: str = ""
    build: str = ""
    largest: int = 0
    outdated: int = 0
    unbounded: int = 0
    tighter: Sequence[tuple[int, int]] = ()
    busy: str = ""
    patient: str = ""
    more: str = ""


def of_reason(reason: str) -> Act:
    """Return what helps against a reason for which a GEMM runs ATen."""
    if "freezing" in reason:
        return Act.FREEZE
    if "mark_dynamic" in reason:
        return Act.BOUND
    if OTHER_DEVICE in reason:
        return Act.OTHER_DEVICE
    if ONLY_ATEN in reason or BARS in reason or reason.startswith(NO_KERNEL):
        return Act.NOTHING
    return Act.BUILD


def needs_bound(serves: Outcome, ranges: Iterable[tuple[int, int | None]]) -> bool:
    """Return whether a GEMM that needs constant weights needs an upper bound of its batch, too: without one, a build
    may leave it out."""
    return of_reason(serves.reason) is Act.FREEZE and any(high is None for _, high in ranges)


def refusal(serves: Outcome) -> str:
    """Return the reason of an `ATen (refused)` among those that a GEMM is not measured for."""
    return serves.reason if serves.reason.startswith(NO_KERNEL) else f"{ONLY_ATEN}: {serves.reason}"


def tighter(serves: Outcome, evidence: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the ends of a smaller range of rows that one kernel would serve, where none is good at all sizes; None if
    none is known."""
    known = evidence.get(GOOD_UP_TO)
    if serves.kind is not Kind.ATEN_REFUSED or not known:
        return None
    return max(evidence["range"]["m"][0], 1), known


def advise(found: Situation) -> tuple[Advice, ...]:
    """Return what to do, the most useful first; never empty."""
    numbers: Counter[Act] = Counter()
    for reason, number in found.left_out.items():
        numbers[of_reason(reason)] += number
    numbers[Act.BOUND] += found.unbounded
    numbers[Act.BUILD] += found.unknown
    numbers[Act.UPGRADE] += found.outdated
    numbers[Act.CHECK] += found.predicted
    numbers[Act.TIGHTEN] += len(found.tighter)
    numbers[Act.NOTHING] += found.best - len(found.tighter)
    steps = [_step(act, numbers[act], found) for act in Act]
    useful = tuple(one for one in steps if one is not None)
    return useful or (_nothing(numbers[Act.NOTHING], found),)


def _step(act: Act, number: int, found: Situation) -> Advice | None:
    if act is Act.IDLE:
        return _idle(found) if found.disturbed or found.busy else None
    if act is Act.RESUME:
        text = f"{_many(found.left, 'problem')} {'is' if found.left == 1 else 'are'} not measured yet; measure them"
        return Advice(act, text, found.command) if found.left else None
    if act is Act.REPEAT:
        text = "the difference may be chance; more samples narrow the interval"
        return Advice(act, text, found.more) if found.more else None
    if not number:
        return None
    gemms, needs = _many(number, "GEMM"), "needs" if number == 1 else "need"
    if act is Act.FREEZE:
        # A graph with a backward is never frozen, so the line would change nothing there.
        text = (
            f"{gemms} {needs} constant weights: nothing to do in training; in inference, set this before the first"
            " compile and run again"
        )
        return Advice(act, text, FREEZE_LINE)
    if act is Act.BOUND:
        text = f"the batch of {gemms} has no upper bound, or a very large one: give one and run again"
        # torch fails if there is a max but no min.
        return Advice(act, text, f"torch._dynamo.mark_dynamic(x, 0, min=2, max={bound(found.largest)})")
    if act is Act.TIGHTEN:
        low, high = min(found.tighter, key=lambda ends: ends[1])
        text = f"{NO_KERNEL} for {gemms}, but one is up to {high:,} rows: bound the batch tighter and run again"
        return Advice(act, text, f"torch._dynamo.mark_dynamic(x, 0, min={low}, max={high})")
    if act is Act.BUILD and found.build:
        return Advice(act, f"no table answers for {gemms}; measure them", found.build)
    if act is Act.UPGRADE and found.build:
        was = "was" if number == 1 else "were"
        return Advice(
            act, f"{gemms} {was} measured with another version of torch or CUDA; upgrade the table", found.build
        )
    if act is Act.CHECK and found.build:
        return Advice(act, f"that ATen is the best kernel for {gemms} is a prediction; measure it", found.build)
    if act is Act.OTHER_DEVICE:
        return Advice(act, f"{gemms} {'runs' if number == 1 else 'run'} on another device; build there", found.build)
    return None


def _idle(found: Situation) -> Advice:
    if found.busy:
        return Advice(Act.IDLE, f"{found.busy}; wait until they end", found.patient)
    rows = f"{found.disturbed:,} of {found.timed:,} timings" if found.timed else "the timings"
    verb = "was" if found.timed == found.disturbed == 1 else "were"
    text = f"{rows} {verb} disturbed by other programs and are not used; run again when the machine is idle"
    return Advice(Act.IDLE, text, found.patient or found.command)


def _nothing(number: int, found: Situation) -> Advice:
    """`number`: GEMMs that ATen runs whatever is done."""
    if not number:
        return Advice(Act.NOTHING, "nothing to do: no faster kernel is known")
    alone = sum(number for reason, number in found.left_out.items() if ONLY_ATEN in reason)
    ranged = sum(number for reason, number in found.left_out.items() if reason.startswith(NO_KERNEL))
    parts = {
        "no kernel is faster than ATen for": number - alone - ranged, f"{NO_KERNEL} for": ranged,
        "only ATen can run": alone,
    }  # fmt: skip
    told = ", and ".join(f"{text} {_many(count, 'GEMM')}" for text, count in parts.items() if count)
    return Advice(Act.NOTHING, f"nothing to do: {told} here")


def bound(largest: int) -> int:
    """Return the upper bound to propose for a batch: the next power of two from the largest size seen."""
    return max(MIN_BOUND, 1 << (max(largest, 1) - 1).bit_length())


def facts(steps: Iterable[Advice], name: str = "next") -> list[tuple[str, str]]:
    """Return the steps as lines of a summary: the name and the step."""
    return [(name, str(one)) for one in steps]


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
