"""Compare what several fits of the cost model answer to the same held-out problems.

    python -m benchmarks.offtable against-aten --fitted-to OLD... --parts pairs-0 rows-0 --out OLD.jsonl.gz
    python -m benchmarks.offtable against-aten --fitted-to NEW... --parts pairs-0 rows-0 --out NEW.jsonl.gz
    python -m benchmarks.offtable fits OLD.jsonl.gz NEW.jsonl.gz

By what was held out, and group of problems. Rungs `near` and `model` are each scored by themselves, both where only
what is certainly faster is served and as before a benchmark that confirms it:

- `kernels`: the share of the problems that are answered with a kernel. Of these, as far as they were timed: the median
  and the 5th percentile of the gain over ATen, and the share that is over 2% slower.
- `all`: the geometric mean of the gains of all problems, with ATen where no kernel is served. Only problems count whose
  answer was timed in every file. Then relative to the first file, with the 95% interval of a bootstrap.
- `error`: the root mean square error of the candidates' logarithms, timed or served or not; `bounds`: the share of them
  within the shipped bounds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.dense.report import bootstrap, mean
from benchmarks.offtable import against_aten
from benchmarks.offtable.calibrate import SHIPPED, modelled, outcomes, read
from benchmarks.offtable.ways import WAYS
from gemmdb.lookup.calibration import MODEL, NEAR
from gemmdb.settings import Policy

SLOWER = 1.02
TAIL = 0.05
"""The share of the gains below the one that is printed beside the median."""
RUNGS = ("near", "model")
HEADS = ("held out", "", "problems", "rung", "file", "kernels", "timed", "median", "5%", "2% slower", "all",
         "over first", "error", "bounds")  # fmt: skip
Line = Mapping[str, Any]
GROUPS = {
    "all": against_aten.GROUPS["all"],
    "dense, 17 to 4,096 rows": lambda one: one["op"] in ("mm", "addmm") and 17 <= one["m"] <= 4096,
    **{op: against_aten.GROUPS[op] for op in ("mm", "addmm", "int_mm", "mixed_mm", "scaled_mm")},
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="what `against-aten --out` wrote")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def main(options: argparse.Namespace) -> None:
    """Print the figures of all files."""
    found = figures([read(path) for path in options.files])
    names = [path.name.partition(".")[0] for path in options.files]
    print(json.dumps(found, indent=1) if options.json else "\n".join(text(found, names)))


def figures(files: Sequence[Sequence[Line]]) -> dict[str, dict[str, dict[str, list[dict[str, Any]]]]]:
    """The figures of each file, by what was held out, group, and how a rung is asked."""
    found: dict[str, dict[str, dict[str, list[dict[str, Any]]]]] = {}
    for way in dict.fromkeys(one["held_out"] for one in files[0]):
        for group, member in GROUPS.items():
            held = [[one for one in lines if one["held_out"] == way and member(one)] for lines in files]
            if held[0]:
                asks = {f"{rung}, {asked}": _figures(held, rung, asked) for rung in RUNGS for asked in WAYS}
                found.setdefault(way, {})[group] = asks
    return found


def _figures(files: Sequence[Sequence[Line]], rung: str, asked: str) -> list[dict[str, Any]]:
    found = [[Answer.of(one, rung, asked) for one in lines] for lines in files]
    known = [gains for each in zip(*found, strict=True) if None not in (gains := [one.gain for one in each])]
    every = [[gain for gain in gains if gain is not None] for gains in zip(*known, strict=True)]
    return [
        {
            "problems": len(lines), **kernels(answers), **scores(lines, rung), "all": mean(gains),
            "over first": _over(gains, every[0]) if place else None,
        }
        for place, (lines, answers, gains) in enumerate(zip(files, found, every or [[] for _ in files], strict=True))
    ]  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """What a rung answers: a kernel or ATen, and the measured gain over ATen; None if the kernel was not timed."""

    kernel: bool
    gain: float | None

    @classmethod
    def of(cls, line: Line, rung: str, asked: str) -> Answer:
        """The answer of a rung by itself."""
        if rung == "near":
            served = line[asked] if line[asked] is not None and line[asked]["rung"] == rung else None
            ratio = served and served["ratio"]
        else:
            served = line["model"] if _expects_enough(line, asked) else None
            ratio = None if served is None or served["measured"] is None else math.exp(served["measured"])
        return cls(served is not None, 1.0 if served is None else ratio and 1 / ratio)


def _expects_enough(line: Line, asked: str) -> bool:
    """Whether rung `model` serves its first candidate."""
    policy, first = Policy(), line["model"]
    if asked == "confirming":
        needed = math.log1p(max(policy.min_gain, policy.unverified_gain))
    else:
        needed = max(math.log1p(policy.model_gain), MODEL.get(line["op"], math.inf))
    return first is not None and -first["expected"] >= needed


def kernels(answers: Sequence[Answer]) -> dict[str, Any]:
    """The figures of the kernels among some answers."""
    served = [one for one in answers if one.kernel]
    gains = sorted(one.gain for one in served if one.gain is not None)
    return {
        "kernels": len(served) / len(answers),
        "timed": len(gains),
        "median": statistics.median(gains) if gains else None,
        "tail": gains[int(TAIL * (len(gains) - 1))] if gains else None,
        "slower": sum(gain < 1 / SLOWER for gain in gains) / len(gains) if gains else None,
    }


def scores(lines: Sequence[Line], rung: str) -> dict[str, Any]:
    """How far off the candidates of a rung are, and the share within their bounds."""
    if rung == "near":
        found = [one for one in outcomes(lines) if one.op in NEAR]
        pairs = [(one.expected, one.measured, SHIPPED.of(one)) for one in found]
    else:
        pairs = [(one, measured, one + MODEL[op]) for op, one, measured in modelled(lines) if op in MODEL]
    if not pairs:
        return {"error": None, "bounds": None}
    return {
        "error": math.sqrt(statistics.fmean((expected - measured) ** 2 for expected, measured, _ in pairs)),
        "bounds": statistics.fmean(measured <= most for _, measured, most in pairs),
    }


def _over(gains: Sequence[float], first: Sequence[float]) -> list[float]:
    """The gains over those of the first file: the mean, and its interval."""
    ratios = [one / other for one, other in zip(gains, first, strict=True)]
    return [mean(ratios) or 1.0, *bootstrap(ratios)]


def text(found: Mapping[str, Mapping[str, Mapping[str, Sequence[Line]]]], names: Sequence[str]) -> Iterator[str]:
    """The figures as Markdown."""
    yield f"| {' | '.join(HEADS)} |"
    yield "|---" * len(HEADS) + "|"
    for way, groups in found.items():
        for group, rungs in groups.items():
            for rung, files in rungs.items():
                for name, one in zip(names, files, strict=True):
                    yield f"| {way} | {group} | {one['problems']} | {rung} | {name} | {' | '.join(_cells(one))} |"


def _cells(one: Mapping[str, Any]) -> Iterator[str]:
    yield f"{one['kernels']:.1%}"
    yield str(one["timed"])
    for name, form in (("median", "{:.3f}x"), ("tail", "{:.3f}x"), ("slower", "{:.1%}"), ("all", "{:.4f}x")):
        yield "" if one[name] is None else form.format(one[name])
    yield "{:.4f}x ({:.4f} to {:.4f})".format(*one["over first"]) if one["over first"] else ""
    yield from ("" if one[name] is None else f"{one[name]:.3f}" for name in ("error", "bounds"))
