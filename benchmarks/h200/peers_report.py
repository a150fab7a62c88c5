"""Print the figures of the lines of `peers`: geometric means against each peer, by the strata of the sample.

    python -m benchmarks.h200 peers-report FILE.jsonl...

The lines of several files are put together.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import json_lines
from benchmarks.h200.strata import FIGURES, SHARES, STRATA, STRATA_OF, STREAMED, mean
from gemmdb.key.problem import Problem

PEERS = ("default", "autotune")
AIMS = {name: autotune for name, _, _, autotune in FIGURES}
SIGMAS = statistics.NormalDist().inv_cdf(0.975)

Line = dict[str, Any]


def gain(line: Line, peer: str) -> float:
    """How many times faster than the peer the table's kernel is."""
    return float(line["us"][peer][1] / line["us"]["gemmdb"][1])


def upper(line: Line, peer: str) -> float:
    """The gain between the peer's third quartile and the first of the table's kernel."""
    return float(line["us"][peer][2] / line["us"]["gemmdb"][0])


def right(line: Line) -> bool:
    """Whether every mode was timed, and the table's kernel is right."""
    timed = "failure" not in line and all(name in line["us"] for name in ("default", "autotune", "gemmdb"))
    return timed and line["ways"]["gemmdb"]["error"] <= line["tolerance"]


def summary(found: Sequence[Line]) -> dict[str, Any] | None:
    """Everything, JSON-ready; None without lines."""
    headers = [line for line in found if "population" in line]
    measured = [line for line in found if "problem" in line]
    good = [line for line in measured if right(line)]
    if not headers or not good:
        return None
    by_stratum = {name: [line for line in good if line["stratum"] == name] for name in (*STRATA, STREAMED)}
    population = headers[-1]["population"]
    return {
        "about": headers[-1],
        "timed": len({line["problem"] for line in good if line["stratum"] != STREAMED}),
        "left_out": [_why(line) for line in measured if not right(line)],
        "figures": [one for name in AIMS if (one := _figure(name, by_stratum, population))],
        "strata": [_stratum(name, group) for name, group in by_stratum.items() if group],
        "floors": [one for name in SHARES if (one := _floor(name, [line for line in good if "floor" in line["us"]]))],
        "linear": _linear([line for line in good if "linear" in line["us"]]),
        "compile_seconds": {
            way: statistics.median(line["ways"][way]["seconds"] for line in good)
            for way in (*PEERS, "gemmdb")
        },
    }  # fmt: skip


def _figure(name: str, groups: Mapping[str, Sequence[Line]], population: Mapping[str, int]) -> Line | None:
    """A figure over its strata, each weighted by its share of the table, with the 95% interval of the mean."""
    strata = [stratum for stratum in STRATA_OF[name] if groups[stratum]]
    total = sum(population[stratum] for stratum in strata)
    if not total:
        return None
    found: Line = {"problems": name, "number": sum(len(groups[stratum]) for stratum in strata), "aim": AIMS[name]}
    for peer in PEERS:
        logs = {stratum: [math.log(gain(line, peer)) for line in groups[stratum]] for stratum in strata}
        shares = {stratum: population[stratum] / total for stratum in strata}
        middle = sum(shares[stratum] * statistics.fmean(some) for stratum, some in logs.items())
        found[peer] = math.exp(middle)
        found[f"{peer}_interval"] = None
        if all(len(some) > 1 for some in logs.values()):
            error = math.hypot(*(shares[s] * statistics.stdev(some) / math.sqrt(len(some)) for s, some in logs.items()))
            found[f"{peer}_interval"] = [math.exp(middle - SIGMAS * error), math.exp(middle + SIGMAS * error)]
    return found


def _stratum(name: str, group: Sequence[Line]) -> Line:
    found: Line = {"problems": name, "number": len(group)}
    for peer in PEERS:
        worst = min(group, key=lambda line: gain(line, peer))
        found[peer] = {
            "gain": mean(gain(line, peer) for line in group), "worst": gain(worst, peer),
            "worst_upper": upper(worst, peer), "worst_problem": worst["problem"],
        }  # fmt: skip
    found["autotune_vs_default"] = mean(line["us"]["default"][1] / line["us"]["autotune"][1] for line in group)
    return found


def _between(interval: Sequence[float] | None) -> str:
    return f"{interval[0]:.2f} to {interval[1]:.2f}" if interval else ""


def _floor(name: str, group: Sequence[Line]) -> Line | None:
    """The shares of the streaming read. Each problem counts once."""
    member, aim = SHARES[name]
    mine = [line for line in group if member(Problem.parse(line["problem"]))]
    shares = {line["problem"]: line["us"]["floor"][1] / line["us"]["gemmdb"][1] for line in mine}
    if not shares:
        return None
    worst = min(shares, key=lambda problem: shares[problem])
    found = {"number": len(shares), "share": mean(shares.values()), "worst": shares[worst], "worst_problem": worst}
    return {"problems": name, "aim": aim, **found}


def _linear(group: Sequence[Line]) -> Line | None:
    gains = {line["problem"]: gain(line, "linear") for line in group}
    if not gains:
        return None
    return {"number": len(gains), "gain": mean(gains.values()), "least": min(gains.values())}


def _why(line: Line) -> str:
    reasons = [line.get("failure", "")]
    for name, facts in line.get("ways", {}).items():
        reasons.append(f"{name}: {facts['failure']}" if "failure" in facts else "")
        if facts.get("error", 0.0) > line["tolerance"]:
            reasons.append(f"{name}: error {facts['error']:.2g}")
    return f"{line['problem']}: {'; '.join(reason for reason in reasons if reason)}"


def markdown(found: Line) -> list[str]:
    """The summary as paragraphs of Markdown."""
    about = found["about"]
    rows = [
        f"| {one['problems']} | {one['number']} | {one['autotune']:.3f}x | {_between(one['autotune_interval'])} "
        f"| {one['aim']:.2f}x | {one['default']:.3f}x |"
        for one in found["figures"]
    ]
    head = ["| problems | sampled | vs max-autotune | 95% | aimed at | vs default |", "|---|---|---|---|---|---|"]
    strata = ["| stratum | number | vs max-autotune | worst | its upper end | vs default | worst | its upper end "
              "| max-autotune vs default |", "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for one in found["strata"]:
        cells = [f"{one[p][f]:.2f}x" for p in reversed(PEERS) for f in ("gain", "worst", "worst_upper")]
        strata.append(
            f"| {one['problems']} | {one['number']} | {' | '.join(cells)} | {one['autotune_vs_default']:.2f}x |"
        )
    seconds = ", ".join(f"{way} {value:.2f}" for way, value in found["compile_seconds"].items())
    texts = [
        f"Side by side in one process, {about['date']}, {about['number']} problems of each stratum by seed "
        f"{about['seed']}: {found['timed']} timed.",
        "\n".join([*head, *rows]),
        "\n".join(strata),
        f"Median seconds of a first call: {seconds}.",
    ]
    for floor in found["floors"]:
        texts.append(
            f"Share of a streaming read, {floor['problems']}, {floor['number']} problems: {floor['share']:.3f} "
            f"(aimed at {floor['aim']}), least {floor['worst']:.2f} (`{floor['worst_problem']}`)."
        )
    if linear := found["linear"]:
        texts.append(f"Against default mode on `linear(x, w.to(x.dtype)) * s`, {linear['number']} problems: "
                     f"{linear['gain']:.1f}x, least {linear['least']:.1f}x.")  # fmt: skip
    return texts + [f"Left out: {line}" for line in found["left_out"]]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="what `peers --out` wrote")


def main(options: argparse.Namespace) -> None:
    """Print the summary of all files together."""
    show([line for path in options.files for line in json_lines(path)])


def show(found: Sequence[Line]) -> None:
    """Print the summary of lines."""
    known = summary(found)
    print(*(markdown(known) if known else ["nothing was measured"]), sep="\n\n")
