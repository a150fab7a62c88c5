"""Print the table and the figures of measured programs.

    python -m benchmarks.programs report FILE.jsonl... [--way gemmdb] [--short] [--json]

One line per program: microseconds in default mode, the gains over default mode and max-autotune with their 95%
intervals in one CUDA graph, the gain over default mode as users run it, without a graph, seconds of compiling (cold,
and warm in brackets), GEMMs by rung, GEMMs that are uncovered, and errors. Of several lines of one program the
last counts; if it lacks a way, the last one that has it. Lines of `measure --cold` only count for cold compiles, and
come first there. Where gemmdb is slower, further lines name the GEMMs that cost the time. Tables of the gains by
class of programs follow, in one graph and as users run them, and the figures of the suite.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import json_lines
from benchmarks.programs.figures import Row, as_run, comparing, compiling, failed, figures, gain, latest, stats, times

HEADS = ("program", "default us", "over default", "over max-autotune", "as run over default",
         "compile s: default", "gemmdb", "max-autotune", "products", "uncovered", "error: default",
         "gemmdb")  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="results of `measure`")
    parser.add_argument("--way", default="gemmdb", help="the way to report; default: gemmdb")
    parser.add_argument(
        "--short", action="store_true", help="the gains and compile times alone, the largest gain first"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and no table")


def main(options: argparse.Namespace) -> None:
    """Print the report."""
    rows: list[Row] = []
    for path in options.files:
        if not path.exists():
            raise FileNotFoundError(2, "No such file", str(path))
        rows += json_lines(path)
    found = figures(rows, options.way)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print("\n".join((short if options.short else table)(latest(rows), options.way)))
    print()
    for over in ("default", "max-autotune", "default as run"):
        for text in classes(found.pop(f"over {over}"), over):
            print(text)
    for name, value in found.items():
        print(f"- {name}: {_said(value)}")


def classes(found: Mapping[str, Mapping[str, float]], over: str) -> Iterator[str]:
    """A Markdown table of the gains over a way by class of programs; nothing if none was timed."""
    if not found:
        return
    yield f"| programs | over {over}: geometric mean | median | from | to |"
    yield "|---" * 5 + "|"
    for name, one in found.items():
        cells = " | ".join(f"{one[column]:.3f}x" for column in ("mean", "median", "from", "to"))
        yield f"| {one['programs']} {name} | {cells} |"
    yield ""


def table(rows: Sequence[Row], way: str) -> Iterator[str]:
    """A Markdown table of programs."""
    yield f"| {' | '.join(HEADS)} |"
    yield "|---" * len(HEADS) + "|"
    for row in rows:
        cells = list(_cells(row, way))
        yield f"| {' | '.join(cells)} |"
        for one in row.get("blame", ()):
            lost = one["lost_us"]
            said = f"{lost[1]:.1f} us ({lost[0]:.1f} to {lost[2]:.1f}) lost to {one['config']} on {one['problem']}"
            yield f"| | {said} |" + " |" * (len(HEADS) - 2)
        if failed(row):
            yield f"| | {'; '.join(_failures(row))} |" + " |" * (len(HEADS) - 2)


def short(rows: Sequence[Row], way: str) -> Iterator[str]:
    """A Markdown table of the programs that were timed in both ways, the largest gain over default mode first."""
    yield f"| program | over default | cold compile s: default | {way} |"
    yield "|---" * 4 + "|"
    gains = [(found, row) for row in rows if (found := gain(comparing(row, way, "default"), way, "default"))]
    for (low, middle, high), row in sorted(gains, key=lambda one: (-one[0][1], one[1]["program"])):
        facts = compiling(row, way, "default")["ways"]
        cold = " | ".join(f"{facts[name]['cold_s']:.1f}" for name in ("default", way))
        yield f"| {row['program']} | {middle:.3f} ({low:.3f} to {high:.3f}) | {cold} |"


def _cells(row: Row, way: str) -> Iterator[str]:
    found = stats(row, way)
    us = times(row).get("default")
    yield row["program"] + (" (no graph)" if row.get("clock", "graph") != "graph" else "")
    yield f"{us[1]:,.0f}" if us else ""
    for over in ("default", "max-autotune"):
        ends = gain(comparing(row, way, over), way, over)
        yield _ends(ends)
    yield _ends(gain(comparing(as_run(row), way, "default"), way, "default"))
    for name in ("default", way, "max-autotune"):
        found_by = {"cold_s": compiling(row, way, name), "warm_s": compiling(row, way, name, "warm_s")}
        yield _seconds({state: pair["ways"].get(name, {}).get(state) for state, pair in found_by.items()})
    yield ", ".join(f"{count} {rung}" for rung, count in sorted(found.get("rungs", {}).items()))
    yield ", ".join(f"{count} {name}" for name, count in sorted(found.get("uncovered", {}).items()))
    for name in ("default", way):
        error = row["ways"].get(name, {}).get("error")
        yield "" if error is None else f"{error:.1e}"


def _ends(found: Sequence[float] | None) -> str:
    """A gain and its interval."""
    return f"{found[1]:.3f} ({found[0]:.3f} to {found[2]:.3f})" if found else ""


def _seconds(facts: dict[str, Any]) -> str:
    """The cold compile, and the warm one in brackets."""
    cold, warm = facts.get("cold_s"), facts.get("warm_s")
    return ("" if cold is None else f"{cold:.1f}") + ("" if warm is None else f" ({warm:.1f})")


def _failures(row: Row) -> Iterator[str]:
    if "failure" in row:
        yield row["failure"].replace("|", "/")
    for name, facts in row["ways"].items():
        if "failure" in facts:
            yield f"{name}: {facts['failure']}".replace("|", "/")


def _said(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list):
        return f"{len(value)}" + (f" ({', '.join(map(str, value))})" if value else "")
    return str(value)
