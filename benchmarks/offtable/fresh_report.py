"""Print the figures of the lines of `fresh`: how many answers are slower than ATen, and what all of them gain.

    python -m benchmarks.offtable fresh-report FILE.jsonl...

The lines of several files are put together. `gain`: the geometric mean over ATen, of the kernels, and of all problems,
where ATen runs if no kernel is served.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import json_lines
from benchmarks.offtable.ways import WAYS
from gemmdb.cost.transfer import tile
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem

SHOWN = 5
LISTED = 30
"""How many of the slowest answers are listed."""
ATEN = "aten:default"

Line = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """An answer that names a kernel: its time relative to ATen's, None if it failed."""

    line: Line
    way: str
    ratio: float | None

    @property
    def said(self) -> str:
        """What the answer is, in one line."""
        given = self.line[self.way]
        problem = " ".join(self.line["problem"].split()[:5])
        measured = "failed" if self.ratio is None else f"{1 / self.ratio:.2f}x"
        return f"{measured}, expected {given['speedup']:.2f}x: {problem}: {given['rung']} {given['config']}"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="what `fresh --out` wrote")


def main(options: argparse.Namespace) -> None:
    """Print the tables."""
    show([line for path in options.files for line in json_lines(path)])


def show(lines: Sequence[Line]) -> None:
    """Print the tables of some lines."""
    print("\n".join(markdown([line for line in lines if "problem" in line])))


def markdown(lines: Sequence[Line]) -> Iterator[str]:
    """Both ways to ask, by group of problems, and the slowest answers of each."""
    yield "| asked | problems | | kernels | failed | slower by 5% | by 10% | worst | gain of kernels | of all |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for way in WAYS:
        for name, member in GROUPS.items():
            group = [line for line in lines if member(line)]
            if group:
                yield f"| {way} | {name} | {len(group)} | {' | '.join(figures(group, way))} |"
    for way in WAYS:
        slow = sorted(slower(answers(lines, way), 1.01), key=lambda one: -(one.ratio or 0.0))
        yield f"\nSlower than ATen by more than 1%, {way}: {len(slow)}"
        yield from (f"- {one.said}" for one in slow[:LISTED])
    yield "\nKernels by near below the bound of their gain, and by how much at most, as logarithms:"
    for name, whole in (("K is whole steps", True), ("K is not", False)):
        missing = shortfalls(lines, whole)
        largest = ", ".join(f"{one:.3f}" for one in missing[:SHOWN])
        yield f"- {name}: {sum(one > 0 for one in missing)} of {len(missing)}: {largest}"


def shortfalls(lines: Sequence[Line], whole: bool) -> list[float]:
    """By how much the gains of kernels by near miss their bounds, as logarithms, the largest first; negative where they
    keep them. `whole`: of those whose steps divide K, or of the others."""
    found = (one for one in answers(lines, "certain") if one.ratio is not None and one.line[one.way]["least_gain"])
    return sorted(
        (
            math.log1p(one.line[one.way]["least_gain"]) + math.log(one.ratio or 1.0)
            for one in found
            if _whole(one) == whole
        ),
        reverse=True,
    )


def answers(lines: Sequence[Line], way: str) -> list[Answer]:
    """The answers that name a kernel."""
    served = (line for line in lines if line[way] is not None and line[way]["config"] != ATEN)
    return [Answer(line, way, _ratio(line["timed"].get(line[way]["config"], {}))) for line in served]


def slower(found: Sequence[Answer], limit: float) -> list[Answer]:
    """Those whose time is more than `limit` times ATen's."""
    return [one for one in found if one.ratio is not None and one.ratio > limit]


def figures(lines: Sequence[Line], way: str) -> Iterator[str]:
    """The cells of a row: numbers of kernels, of those that failed, of slow ones; the worst; the gains."""
    found = answers(lines, way)
    logs = [-math.log(one.ratio) for one in found if one.ratio is not None]
    yield str(len(found))
    yield str(len(found) - len(logs))
    yield str(len(slower(found, 1.05)))
    yield str(len(slower(found, 1.10)))
    yield f"{math.exp(min(logs)):.2f}x" if logs else "-"
    yield f"{math.exp(sum(logs) / len(logs)):.3f}x" if logs else "-"
    yield f"{math.exp(sum(logs) / len(lines)):.3f}x"


def _ratio(times: dict[str, Any]) -> float | None:
    return times["us"] / times["aten_us"] if "us" in times else None


def _whole(answer: Answer) -> bool:
    problem, config = Problem.parse(answer.line["problem"]), Config.parse(answer.line[answer.way]["config"])
    shape = tile(config)
    return shape is None or problem.k % shape.k == 0


def _odd(line: Line) -> bool:
    sizes = dict(word.split("=") for word in line["problem"].split()[1:4])
    return any(int(size) % 8 for size in (sizes["n"], sizes["k"]))


def _of(op: str) -> Callable[[Line], bool]:
    return lambda line: bool(line["op"] == op)


GROUPS: dict[str, Callable[[Line], bool]] = {
    "all": lambda line: True,
    **{op: _of(op) for op in ("mm", "addmm", "int_mm", "mixed_mm")},
    "M <= 8": lambda line: bool(line["m"] <= 8),
    "9 to 64": lambda line: bool(9 <= line["m"] <= 64),
    "65 to 512": lambda line: bool(65 <= line["m"] <= 512),
    "M > 512": lambda line: bool(line["m"] > 512),
    "N or K no multiple of 8": _odd,
}
