"""Print what kinds of kernels hold over ATen, by class of M, from the raw lines of an exploration.

    python -m benchmarks.dense explored LINES.jsonl.xz

A line is a config on a GEMM: `group` is its kind, `rounds` are microseconds per call in turn with ATen, for the fastest
few of each kind. The fastest of ATen and the kernels of a set of kinds in the even rounds is picked; its gain is that
in the odd ones. `+`: with all kinds above. Gains are geometric means, with the 95% interval of a bootstrap over GEMMs.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import json_lines
from benchmarks.dense.report import bootstrap, mean
from benchmarks.dense.sample import stratum

KINDS = ("cublaslt", "triton", "cutlass", "cluster")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The option of the tool."""
    parser.add_argument("file", type=Path, metavar="LINES", help="the lines of an exploration")


def main(options: argparse.Namespace) -> None:
    """Print the tables."""
    print("\n".join(text(json_lines(options.file))))


def text(lines: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A table for each class."""
    classes: dict[str, dict[str, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for line in (one for one in lines if "rounds" in one and one["config"] != "read nothing"):
        classes[stratum(line["m"])][line["problem"]].append(line)
    for name, gemms in classes.items():
        chosen = [("floor",), *((kind,) for kind in KINDS), *(KINDS[:end] for end in range(len(KINDS) + 1))]
        floor, *gains = ([gain(one, kinds) for one in gemms.values()] for kinds in chosen)
        yield f"\nM {name}, {len(gemms)} GEMMs; reading B alone: {_cell(floor)}\n"
        yield "| kernels | alone, over ATen | + | adds |\n|---|---|---|---|"
        for kind, alone, less, more in zip(KINDS, gains, gains[4:], gains[5:], strict=False):
            adds = [now / then for now, then in zip(more, less, strict=True)]
            yield f"| {kind} | {' | '.join(map(_cell, (alone, more, adds)))} |"


def gain(timed: Sequence[Mapping[str, Any]], kinds: Collection[str]) -> float:
    """The gain of one GEMM over ATen with these kinds of kernels."""
    aten = next(one["rounds"] for one in timed if one["group"] == "aten")
    rounds = [one["rounds"] for one in timed if one["group"] in ("aten", *kinds)]
    ratios = [[float(a / b) for a, b in zip(aten, ours, strict=True)] for ours in rounds]
    return statistics.median(max(ratios, key=lambda one: statistics.median(one[::2]))[1::2])


def _cell(gains: Sequence[float]) -> str:
    low, high = bootstrap(gains)
    return f"{mean(gains):.3f}x ({low:.3f} to {high:.3f})"
