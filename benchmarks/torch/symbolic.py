"""Compare one compile with a symbolic number of rows against a static compile for each number of rows.

    python -m benchmarks.torch symbolic --out symbolic.json [--weights bf16] [--sizes 2,4,...,4096] [--hint 512]
        [--on-miss default] [--seconds 420] [--host]

The program is the piece of a Llama-3-8B-shaped decoder between two attentions: output projection, feed-forward, and the
next query, key and value projection, each after a norm. It is compiled in default mode for each size, with gemmdb for
each size, and once with gemmdb for the whole range, with the sizes' hint. Each compile begins as in a new process of a
new user. All three are captured at each size and replayed in turn. A line has their microseconds and the gains over
default mode; the last line says how much of the static gain the symbolic compile keeps in the geometric mean, and how
slow it is at worst. `--host` compiles the piece once more for the whole range, in default mode and with gemmdb, and
times calls of both in turn without a CUDA graph: where ATen runs in both, the difference is what the choice by rows
costs.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import software, without_root
from gemmdb.errors import InputError
from gemmdb.table.measurement import one_line

SIZES = "2,4,8,16,24,32,64,128,192,256,384,512,1024,1536,2048,4096"
STEADY = 0.01
"""A size counts as slower than default mode from this loss on."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument(
        "--out", type=Path, default=Path("symbolic.json"), metavar="FILE", help="default: symbolic.json"
    )
    parser.add_argument("--weights", choices=("bf16", "int8", "int8-before"), default="bf16", help="default: bf16")
    parser.add_argument("--sizes", default=SIZES, metavar="ROWS,...", help="default: 16 sizes from 2 to 4096")
    parser.add_argument("--hint", type=int, default=512, metavar="ROWS", help="rows of the first call; default: 512")
    parser.add_argument(
        "--on-miss", choices=("default", "live", "aten"), default="default",
        help="default: as for users, who tune what is fast; live: tune each GEMM of a static compile",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=420, help="begin no size after that time; default: 420")
    parser.add_argument("--host", action="store_true", help="also time what the host takes for a call")


def main(options: argparse.Namespace) -> None:
    """Compile once for the range, then for each size; write after each size."""
    sizes = parsed(options.sizes)
    from benchmarks.torch import llama, pieces

    until, shape = time.monotonic() + options.seconds, llama.Shape()
    piece = llama.Piece(shape, options.weights, "cuda").eval()
    how: dict[str, Any] = {"shape": shape, "device": "cuda", "on_miss": options.on_miss}
    bounds = (sizes[0], sizes[-1])
    symbolic = pieces.compiled(piece, "gemmdb", options.hint, how | {"bounds": bounds})
    facts = symbolic.facts
    # The next compile forgets this one, so it is captured at all sizes now.
    given = {rows: pieces.inputs(shape, rows, "cuda") for rows in sizes}
    captures = {rows: pieces.captured(symbolic.run, given[rows]) for rows in sizes}
    document: dict[str, Any] = {
        **software(), "weights": options.weights, "bounds": bounds, "hint": options.hint, "symbolic": facts, "rows": []
    }  # fmt: skip
    print(f"symbolic: {facts['compile_s']:.1f} s to compile", flush=True)
    for problem, configs in pieces.configs(facts, sizes).items():
        print(f"  {problem}: {'; '.join(dict.fromkeys(configs))}", flush=True)
    for rows in sizes:
        if time.monotonic() > until:
            break
        try:
            document["rows"].append(measured(piece, captures[rows], given[rows], how))
        except Exception as error:
            document["rows"].append({"rows": rows, "failure": one_line(f"{type(error).__name__}: {error}")})
        options.out.write_text(without_root(document) + "\n")
        print(line(document["rows"][-1]), flush=True)
    print(summary(document["rows"]), flush=True)
    if options.host:
        document["host"] = hosts(pieces.beside(piece, options.hint, how | {"bounds": bounds}), given)
        options.out.write_text(without_root(document) + "\n")


def parsed(text: str) -> list[int]:
    """The sizes of a text such as `2,16,512`, smallest first. Raises InputError: torch compiles a single row anew,
    whatever was marked as symbolic."""
    numbers = [one.strip() for one in text.split(",")]
    if not all(number.isdigit() and int(number) > 1 for number in numbers):
        raise InputError(f"--sizes: whole numbers from 2 on with commas between them, not {text!r}")
    return sorted({int(number) for number in numbers})


def measured(piece: Any, symbolic: Any, given: Any, how: Mapping[str, Any]) -> dict[str, Any]:
    """The result at one size, that of `given`. `symbolic`: the symbolic compile, captured at that size. `how`: as for
    `pieces.compiled`."""
    from benchmarks.torch import pieces

    rows, captures, facts = given[0].shape[0], {}, {}
    for name, mode in (("default", "default"), ("static", "gemmdb")):
        made = pieces.compiled(piece, mode, rows, dict(how))
        captures[name], facts[name] = pieces.captured(made.run, given), made.facts
    captures["symbolic"] = symbolic
    found: dict[str, Any] = {
        "rows": rows, "compile_s": {name: one["compile_s"] for name, one in facts.items()},
        "configs": pieces.configs(facts["static"], [rows]), "taken": pieces.timed(captures, 2.0),
    }  # fmt: skip
    pieces.check(captures)
    return found


def hosts(runs: Mapping[str, Any], given: Mapping[int, Any]) -> dict[str, dict[str, float]]:
    """Microseconds of the host for a call of each mode, by rows."""
    from benchmarks.torch import pieces

    found = {}
    for rows, one in given.items():
        us = found[str(rows)] = pieces.host_us(runs, one)
        words = ", ".join(f"{name} {taken:.1f} us" for name, taken in us.items())
        print(f"{rows} rows: the host takes {words}, {us['gemmdb'] - us['default']:+.1f} us", flush=True)
    return found


def gains(row: Mapping[str, Any]) -> dict[str, float]:
    """The speedup over default mode of the static and the symbolic compile: the median of the rounds' ratios."""
    default = row["taken"]["default"]
    return {
        name: statistics.median(ours / us for ours, us in zip(default, row["taken"][name], strict=True))
        for name in ("static", "symbolic")
    }


def line(row: Mapping[str, Any]) -> str:
    """A row as text."""
    if "failure" in row:
        return f"{row['rows']} rows: {row['failure']}"
    us = {name: statistics.median(taken) for name, taken in row["taken"].items()}
    found = gains(row)
    words = [f"{name} {us[name]:.1f} us" + (f" ({found[name]:.3f}x)" if name in found else "") for name in us]
    return f"{row['rows']} rows: {', '.join(words)}"


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """How much of the static gain the symbolic compile keeps, and where it is slower than default mode."""
    found = {row["rows"]: gains(row) for row in rows if "failure" not in row}
    if not found:
        return "nothing was measured"
    static, symbolic = (
        math.exp(statistics.mean(math.log(one[name]) for one in found.values())) for name in ("static", "symbolic")
    )
    slower = [rows for rows, one in found.items() if one["symbolic"] < 1 - STEADY]
    kept = f", {(symbolic - 1) / (static - 1):.3f} of its gain" if static > 1 else ""
    return (
        f"{len(found)} sizes: static {static:.3f}x of default mode, symbolic {symbolic:.3f}x, "
        f"{symbolic / static:.3f} of its speed{kept}; "
        f"slower than default mode: {', '.join(map(str, slower)) or 'none'}; "
        f"worst against static {min(one['symbolic'] / one['static'] for one in found.values()):.3f}x"
    )
