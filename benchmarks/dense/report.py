"""Print the figures of lines that `measure` wrote.

    python -m benchmarks.dense report LINES.jsonl... [--json]

By ranges of M: the geometric mean over default mode, with the 95% interval of a bootstrap over the GEMMs, and over
torch's own function (default mode may pad); how many GEMMs are slower than in default mode by over 2% even at the
better end of their 95% interval; the share that loses over 3% to the fastest of cuBLASLt's heuristics; what that
heuristic gains by itself; the time of a call without a CUDA graph and of a compile, over default mode's. A ratio of a
GEMM is the median over the rounds, in which one way follows the other. The rungs and the GEMMs that are slower
follow. Of several lines of a GEMM the last counts.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import json_lines
from benchmarks.dense.sample import STRATA, stratum
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem
from gemmdb.table.stats import interval

SLOWER, LOSES = 1.02, 1.03
"""A GEMM is slower than default mode, or loses to a heuristic, if its time relative to it is above this."""
FASTER = 1.04
"""How much faster than ATen a heuristic is that the search for an algorithm should find."""
RESAMPLED, SEED = 2000, 1
"""Resamples of a bootstrap, and what draws them."""
WAYS = {"gemmdb": "as installed", "built": "after a build"}
"""The ways that are compared with default mode, as a report names them."""
HEADS = ("M", "GEMMs", "over default", "over torch.mm", "slower by 2%", "loses 3% to a heuristic",
         "heuristic over default", "the better of both", "call without a graph", "compile")  # fmt: skip
Line = Mapping[str, Any]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("files", type=Path, nargs="+", metavar="LINES", help="files of `measure`")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def main(options: argparse.Namespace) -> None:
    """Print the report."""
    lines: list[dict[str, Any]] = []
    for path in options.files:
        if not path.exists():
            raise FileNotFoundError(2, "No such file", str(path))
        lines += json_lines(path)
    print(json.dumps(document(lines), indent=1) if options.json else "\n".join(text(lines)))


def latest(lines: Iterable[Line]) -> list[Line]:
    """The last line of each GEMM that was timed."""
    return list({line["problem"]: line for line in lines if "taken" in line}.values())


def document(lines: Sequence[Line]) -> dict[str, Any]:
    """All figures, JSON-ready: by way and range of M, the GEMMs that are slower, and those that failed."""
    timed = latest(lines)
    failed = {line["problem"]: line["failure"] for line in lines if "failure" in line}
    return {
        "devices": sorted({line["device"] for line in lines if line.get("device")}),
        "toolchains": sorted({line["toolchain"] for line in lines if line.get("toolchain")}),
        **{way: _way(timed, way) for way in WAYS if any(way in line["taken"] for line in timed)},
        "failed": {problem: failed[problem] for problem in failed if problem not in {one["problem"] for one in timed}},
    }


def _way(timed: Sequence[Line], way: str) -> dict[str, Any]:
    compared = [line for line in timed if {way, "default"} <= set(line["taken"])]
    names = [f"{low:,} to {high:,}" for low, high in STRATA]
    groups = {name: [line for line in compared if stratum(line["m"]) == name] for name in names}
    groups["all"] = compared
    slow = sorted((line for line in compared if slower(line, way)), key=lambda line: -ratio(line, way, "default")[1])
    return {
        "by M": {name: figures(group, way) for name, group in groups.items() if group},
        "rungs": dict(Counter(f"{line['ways'][way]['rung']} {kernel(line, way)}" for line in compared)),
        "slower": [described(line, way) for line in slow],
        "wrong": [line["problem"] for line in compared if wrong(line, way)],
    }


def figures(group: Sequence[Line], way: str) -> dict[str, Any]:
    """The figures of some GEMMs. None where nothing was timed."""
    gains = [1 / ratio(line, way, "default")[1] for line in group]
    against = [line for line in group if "heuristic" in line["taken"]]
    losses = [ratio(line, way, "heuristic")[1] for line in against]
    best = [1 / ratio(line, "heuristic", "default")[1] for line in against]
    better = [max(1 / ratio(line, way, "default")[1], gain) for line, gain in zip(against, best, strict=True)]
    return {
        "count": len(group),
        "mean": mean(gains),
        "interval": bootstrap(gains),
        "over torch": mean([1 / ratio(line, way, "aten")[1] for line in group]),
        "slower": sum(slower(line, way) for line in group),
        "loses": sum(one > LOSES for one in losses) / len(losses) if losses else None,
        "worst loss": max(losses, default=None),
        "heuristic": mean(best),
        "better of both": mean(better),
        "faster heuristics": found_of(against, way),
        "call": _median(call(line, way) for line in group),
        "compile": _median(compiled(line, way) for line in group),
    }


def found_of(group: Sequence[Line], way: str) -> list[int]:
    """Of the GEMMs for which a heuristic takes less than ATen by FASTER: how many run another kernel than ATen's, and
    how many there are."""
    faster = [line for line in group if 1 / ratio(line, "heuristic", "aten")[1] >= FASTER]
    return [sum(kernel(line, way) != ATEN.name for line in faster), len(faster)]


def ratio(line: Line, way: str, over: str) -> tuple[float, float, float]:
    """The time of `way` relative to that of `over`: the median of the rounds between the ends of its interval."""
    rounds = sorted(ours / theirs for ours, theirs in zip(line["taken"][way], line["taken"][over], strict=True))
    low, high = interval(len(rounds))
    return rounds[low], statistics.median(rounds), rounds[high]


def slower(line: Line, way: str) -> bool:
    """Whether a GEMM is slower than in default mode by more than noise."""
    return ratio(line, way, "default")[0] > SLOWER


def wrong(line: Line, way: str) -> bool:
    """Whether the error of a result is above the tolerance."""
    return not line["ways"][way]["error"] <= line["tolerance"]


def call(line: Line, way: str) -> float | None:
    """The median time of a call without a CUDA graph, relative to default mode's."""
    times = line.get("host", {})
    if not {way, "default"} <= set(times):
        return None
    ours, theirs = (statistics.median(times[name]["wall"]) for name in (way, "default"))
    return float(ours / theirs)


def compiled(line: Line, way: str) -> float | None:
    """The compile time relative to default mode's."""
    ours, theirs = (line["ways"].get(name, {}).get("seconds") for name in (way, "default"))
    return float(ours / theirs) if ours and theirs else None


def kernel(line: Line, way: str) -> str:
    """The kernel that a way got, `cublaslt:matmul`."""
    return str(line["ways"][way]["config"] or "").partition(" ")[0]


def described(line: Line, way: str) -> dict[str, Any]:
    """A GEMM for a list, JSON-ready."""
    ends = [round(one, 4) for one in ratio(line, way, "default")]
    facts = {name: line["ways"][way][name] for name in ("rung", "config")}
    return {"problem": Problem.parse(line["problem"]).head, "ratio": ends, **facts}


def mean(values: Sequence[float]) -> float | None:
    """The geometric mean; None of nothing."""
    return math.exp(statistics.fmean(map(math.log, values))) if values else None


def bootstrap(values: Sequence[float]) -> list[float]:
    """The 95% interval of the geometric mean, by resampling the values."""
    source = random.Random(SEED)
    logs = [math.log(value) for value in values]
    means = sorted(math.exp(statistics.fmean(source.choices(logs, k=len(logs)))) for _ in range(RESAMPLED))
    return [means[int(RESAMPLED * 0.025)], means[int(RESAMPLED * 0.975) - 1]]


def text(lines: Sequence[Line]) -> Iterator[str]:
    """The report as Markdown."""
    found = document(lines)
    yield f"{', '.join(found['devices']) or 'unknown device'}; {', '.join(found['toolchains'])}"
    for way, words in WAYS.items():
        if way not in found:
            continue
        yield f"\n{words}:\n"
        yield f"| {' | '.join(HEADS)} |"
        yield "|---" * len(HEADS) + "|"
        for name, one in found[way]["by M"].items():
            yield f"| {name} | {' | '.join(_cells(one))} |"
        yield ""
        others, count = found[way]["by M"].get("all", {}).get("faster heuristics", (0, 0))
        yield f"a heuristic is at least {FASTER - 1:.0%} faster than ATen: {count} GEMMs, {others} run another kernel"
        yield "rungs: " + ", ".join(f"{count} {name}" for name, count in sorted(found[way]["rungs"].items()))
        for one in found[way]["slower"]:
            low, middle, high = one["ratio"]
            yield f"slower: {one['problem']}: {middle:.3f} ({low:.3f} to {high:.3f}), {one['rung']} {one['config']}"
        yield from (f"wrong: {problem}" for problem in found[way]["wrong"])
    yield from (f"failed: {problem}: {reason}" for problem, reason in found["failed"].items())


def _cells(one: Mapping[str, Any]) -> Iterator[str]:
    low, high = one["interval"]
    yield str(one["count"])
    yield f"{one['mean']:.3f}x ({low:.3f} to {high:.3f})"
    yield f"{one['over torch']:.3f}x"
    yield str(one["slower"])
    yield "" if one["loses"] is None else f"{one['loses']:.0%}, up to {one['worst loss']:.2f}x"
    for name in ("heuristic", "better of both", "call", "compile"):
        yield "" if one[name] is None else f"{one[name]:.3f}x"


def brief(line: Line) -> str:
    """A line of `measure` for a person who waits."""
    if "taken" not in line:
        return str(line["failure"])
    us = {name: round(statistics.median(times), 2) for name, times in line["taken"].items()}
    got = {way: f"{line['ways'][way]['rung']} {kernel(line, way)}" for way in WAYS if way in line["taken"]}
    return f"{us} {got}"


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
