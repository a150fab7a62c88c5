"""Print the figures of lines that `measure` wrote, losses first.

    python -m benchmarks.peers report LINES.jsonl... [--json] [--losses 40] [--rivals-of EARLIER.jsonl...]

For each op and rival, the geometric mean of the rival's time over gemmdb's (above 1, gemmdb is faster) with the 95%
interval of a bootstrap over the GEMMs, for all M and by classes of M; how many GEMMs gemmdb loses by over 5% beyond
noise; `best rival` is the fastest of the others on each GEMM, without default mode. Wrong results and GEMMs that a
rival has no kernel for are left out and counted. A rival whose usual mode is less exact than the tolerance allows is
timed in its exact mode, if it has one. Before the tables, each GEMM that gemmdb loses to its best rival, the worst
first. A ratio of a GEMM is the median over the rounds.

`--rivals-of` takes the times of rivals that LINES lacks from earlier lines of the same GEMMs, times the median of the
ratios of cuBLAS's times in both runs: a change of gemmdb can be judged where the rivals are not installed. Single GEMMs
differ between runs by a few percent, and some by a fifth.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import json_lines
from benchmarks.dense.report import bootstrap, latest, mean, ratio
from benchmarks.peers.ops import CLASSES, OPS, class_of
from gemmdb.key.problem import Problem

LOST = 1.05
"""gemmdb loses a GEMM if it takes longer than a rival by more than this."""
OURS, BEST = "gemmdb", "best rival"
REFERENCE = "cublas"
MODES = ("default", OURS, "max-autotune")
"""Ways that are torch's or our own, which are no best rival."""
Line = Mapping[str, Any]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("files", type=Path, nargs="+", metavar="LINES", help="files of `measure`")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--losses", type=int, default=40, help="how many losses are listed; default: 40")
    parser.add_argument("--rivals-of", type=Path, nargs="+", default=[], metavar="EARLIER",
                        help="files with times of rivals that LINES lacks")  # fmt: skip


def main(options: argparse.Namespace) -> None:
    """Print the report."""
    lines = with_rivals(_read(options.files), _read(options.rivals_of))
    print(json.dumps(document(lines), indent=1) if options.json else "\n".join(text(lines, options.losses)))


def _read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(2, "No such file", str(path))
        lines += json_lines(path)
    return lines


def with_rivals(lines: Sequence[dict[str, Any]], earlier: Sequence[Line]) -> list[dict[str, Any]]:
    """The lines with what earlier ones have of other rivals, scaled by cuBLAS's times."""
    known = {line["problem"]: line for line in latest(earlier)}
    pairs = [(line["taken"], known[line["problem"]]["taken"]) for line in latest(lines) if line["problem"] in known]
    both = [(now[REFERENCE], before[REFERENCE]) for now, before in pairs if REFERENCE in now and REFERENCE in before]
    if not both:
        return list(lines)
    factor = statistics.median(statistics.median(now) / statistics.median(before) for now, before in both)
    return [_with(line, known.get(line.get("problem", "")), factor) for line in lines]


def _with(line: dict[str, Any], before: Line | None, factor: float) -> dict[str, Any]:
    if before is None or "taken" not in line:
        return line
    rounds = len(line["taken"][OURS])
    others = {
        name: [us * factor for us in times[:rounds]]
        for name, times in before["taken"].items()
        if name not in MODES and name not in line["taken"] and len(times) >= rounds
    }
    ways = {name: before["ways"][name] for name in others}
    return {**line, "taken": {**line["taken"], **others}, "ways": {**line["ways"], **ways}}


def right(line: Line, name: str) -> bool:
    """Whether a way was timed on a GEMM, and its results are right."""
    return name in line["taken"] and line["ways"][name]["error"] <= line["tolerance"]


def best_of(line: Line) -> str | None:
    """The fastest rival with right results on a GEMM."""
    found = [name for name in line["taken"] if name not in MODES and right(line, name)]
    return min(found, key=lambda name: statistics.median(line["taken"][name]), default=None)


def rival_of(line: Line, name: str) -> str | None:
    """The way that `name` stands for on a GEMM, None if it has none there."""
    found = best_of(line) if name == BEST else name
    return found if found is not None and right(line, found) else None


def document(lines: Sequence[Line]) -> dict[str, Any]:
    """All figures, JSON-ready."""
    timed = latest(lines)
    known = {line["problem"] for line in timed}
    return {
        "devices": sorted({line["device"] for line in lines if line.get("device")}),
        "toolchains": sorted({line["toolchain"] for line in lines if line.get("toolchain")}),
        "losses": losses(timed),
        "ops": {name: group for name in OPS if (group := op_figures([one for one in timed if one["op"] == name]))},
        "not run": not_run(lines),
        "failed": {
            line["problem"]: line["failure"] for line in lines if "failure" in line and line["problem"] not in known
        },
    }  # fmt: skip


def losses(timed: Sequence[Line]) -> list[dict[str, Any]]:
    """GEMMs that gemmdb loses to its best rival beyond noise, the worst first. `ratio`: our time over the rival's."""
    found = []
    for line in timed:
        best = best_of(line)
        if best is None or not right(line, OURS):
            continue
        low, middle, high = ratio(line, OURS, best)
        if low > LOST:
            facts = line["ways"][OURS]
            us = {name: round(statistics.median(line["taken"][name]), 2) for name in (OURS, best)}
            found.append({
                "op": line["op"], "problem": Problem.parse(line["problem"]).head, "rival": best, "us": us,
                "ratio": [low, middle, high], "rung": facts.get("rung"), "config": facts.get("config"),
            })  # fmt: skip
    return sorted(found, key=lambda one: -one["ratio"][1])


def op_figures(timed: Sequence[Line]) -> dict[str, Any]:
    """By rival: the figures over all GEMMs of an op, and by class of M."""
    names = dict.fromkeys(name for line in timed for name in line["taken"] if name != OURS)
    return {name: found for name in (BEST, *names) if (found := _rival(timed, name))}


def _rival(timed: Sequence[Line], name: str) -> dict[str, Any]:
    compared = [line for line in timed if right(line, OURS) and rival_of(line, name)]
    if not compared:
        return {}
    classes = {class_of(low): [line for line in compared if line["class"] == class_of(low)] for low, _ in CLASSES}
    wrong = sum(name in line["taken"] and not right(line, name) for line in timed)
    inexact = [line["ways"][name]["inexact"] for line in compared if "inexact" in line["ways"].get(name, {})]
    figures = {"all": _figures(compared, name), **{k: _figures(group, name) for k, group in classes.items() if group}}
    return {"by M": figures, "wrong": wrong, "without": len(timed) - len(compared) - wrong, "inexact": inexact}


def _figures(group: Sequence[Line], name: str) -> dict[str, Any]:
    ratios = [ratio(line, OURS, rival_of(line, name) or name) for line in group]
    gains = [1 / middle for _, middle, _ in ratios]
    return {
        "count": len(group), "mean": mean(gains), "interval": bootstrap(gains), "worst": min(gains),
        "lost": sum(low > LOST for low, _, _ in ratios),
    }  # fmt: skip


def not_run(lines: Sequence[Line]) -> dict[str, str]:
    """Why rivals have no times: those that are not installed or were left out, and by op, the commonest reasons."""
    found: dict[str, str] = {}
    for line in lines:
        found |= {name: said for name, said in line.get("rivals", {}).items() if said.endswith("not installed")}
        found |= line.get("left_out", {})
    reasons: Counter[tuple[str, str, str]] = Counter()
    for line in lines:
        for name, facts in line.get("ways", {}).items():
            if "failure" in facts and name not in found:
                reasons[line["op"], name, facts["failure"]] += 1
        if "died" in line:
            reasons[line["op"], line["died"], line["reason"]] += 1
    return found | {f"{op}, {name}, {count}x": said for (op, name, said), count in reasons.most_common()}


def text(lines: Sequence[Line], most: int = 40) -> Iterator[str]:
    """The report as Markdown."""
    found = document(lines)
    yield f"{', '.join(found['devices']) or 'unknown device'}; {', '.join(found['toolchains'])}"
    yield f"\n{len(found['losses'])} GEMMs lost by over {LOST - 1:.0%}:\n"
    for one in found["losses"][:most]:
        low, middle, high = one["ratio"]
        times = ", ".join(f"{name} {us}" for name, us in one["us"].items())
        served = f"{one['rung']} {one['config']}"
        yield f"- {one['op']}: {one['problem']}: {middle:.2f} ({low:.2f} to {high:.2f}), us: {times}; {served}"
    classes = ("all", *(class_of(low) for low, _ in CLASSES))
    for name, group in found["ops"].items():
        yield f"\n{name}: the rival's time over gemmdb's\n"
        yield f"| rival | GEMMs | lost | worst | {' | '.join(classes)} |"
        yield "|---" * (len(classes) + 4) + "|"
        for rival, figures in group.items():
            yield f"| {' | '.join(_cells(rival, figures, classes))} |"
        yield from (f"\n{rival}: {one['wrong']} wrong" for rival, one in group.items() if one["wrong"])
        yield from (_exact_mode(rival, one["inexact"]) for rival, one in group.items() if one["inexact"])
    yield ""
    yield from (f"not run: {name}: {reason}" for name, reason in found["not run"].items())
    yield from (f"failed: {problem}: {reason}" for problem, reason in found["failed"].items())


def _exact_mode(rival: str, inexact: Sequence[float]) -> str:
    return (
        f"\n{rival}: {len(inexact)} in its exact mode: the errors of its usual mode, up to {max(inexact):.3f}, are "
        "above the tolerance"
    )


def _cells(rival: str, figures: Mapping[str, Any], classes: Sequence[str]) -> Iterator[str]:
    whole = figures["by M"]["all"]
    yield from (rival, str(whole["count"]), str(whole["lost"]), f"{whole['worst']:.2f}x")
    for name in classes:
        one = figures["by M"].get(name)
        yield f"{one['mean']:.2f}x ({one['interval'][0]:.2f} to {one['interval'][1]:.2f})" if one else ""


def brief(line: Line) -> str:
    """A line of `measure` for a person who waits."""
    if "taken" not in line:
        return str(line["failure"])
    us = {name: round(statistics.median(times), 2) for name, times in line["taken"].items()}
    wrong = [name for name in us if not right(line, name)]
    absent = [f"{name}: {facts['failure'][:80]}" for name, facts in line["ways"].items() if "failure" in facts]
    return " ".join([str(us), *(f"WRONG {name} {line['ways'][name]['error']:.3g}" for name in wrong), *absent])
