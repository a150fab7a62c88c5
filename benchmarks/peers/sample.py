"""Draw the GEMMs of each op.

    python -m benchmarks.peers sample --out SAMPLE.jsonl [--count 48] [--seed 1] [--ops int4,bf16]

`--count` problems per op. Their M come from the classes 1, 2 to 16, 17 to 64, 65 to 256, 257 to 1,024 and 1,025 to
4,096 in turn. N and K are layers of public models, or random multiples of 128 (of 8 for bf16; with block scales,
K is one of 512), in turn; experts are those of public models. The ops alternate, and any prefix has the same shares of
ops and classes.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import json_lines
from benchmarks.dense import models
from benchmarks.dense.sample import LARGEST, LEAST, MOST, between, rows
from benchmarks.peers.ops import CLASSES, EXPERTS, OPS, Op
from gemmdb.errors import InputError
from gemmdb.key.problem import Problem

MOST_DRAWS = 10_000
"""So many draws that give no new problem in a row mean that there is none."""


@dataclass(frozen=True)
class Drawn:
    """A problem of a sample, and the name of its op."""

    op: str
    problem: Problem

    @property
    def line(self) -> str:
        """The problem as a line of a sample."""
        return json.dumps({"op": self.op, "problem": self.problem.text})


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--count", type=int, default=48, help="how many problems per op; default: 48")
    parser.add_argument("--seed", type=int, default=1, help="draws the problems; default: 1")
    parser.add_argument("--ops", default=",".join(OPS), help="names of ops; default: all")


def main(options: argparse.Namespace) -> None:
    """Draw and write."""
    drawn = draw(options.count, options.seed, options.ops.split(","))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("".join(one.line + "\n" for one in drawn))
    print(f"{options.out}: {len(drawn)} problems of {len({one.op for one in drawn})} ops")


def read(path: Path) -> list[Drawn]:
    """The problems of a sample."""
    if not path.exists():
        raise FileNotFoundError(2, "No such file", str(path))
    return [Drawn(line["op"], Problem.parse(line["problem"])) for line in json_lines(path)]


def draw(count: int, seed: int, names: Iterable[str]) -> list[Drawn]:
    """The first `count` problems of each op, the ops in turn."""
    per_op = [list(problems(OPS[name], count, random.Random(f"peers {seed} {name}"))) for name in names]
    return [one for turn in zip(*per_op, strict=True) for one in turn]


def problems(op: Op, count: int, source: random.Random) -> Iterator[Drawn]:
    """Distinct problems of an op, the classes of M in turn. Raises InputError if there are fewer than `count`."""
    listed = models.layers_of(models.UNSEEN.values())
    sizes = [(layer.n, layer.k) for layer in listed if layer.role != "head"]
    found: set[Problem] = set()
    draws = 0
    while len(found) < count:
        draws += 1
        if draws > MOST_DRAWS:
            raise InputError(f"{op.name}: only {len(found)} problems can be drawn in equal numbers, not {count}")
        low, high = CLASSES[len(found) % len(CLASSES)]
        m = rows(source, low, high) if low >= 8 else between(source, low, high)
        groups = 0
        if op.grouped:
            groups, n, k = source.choice(EXPERTS)
        elif len(found) // len(CLASSES) % 2 == 0:
            n, k = source.choice(op.layers or sizes)
        else:
            n, k = (max(between(source, LEAST, MOST) // step * step, step) for step in (op.step, op.deep))
        fits = (n % op.step == 0 or n in {size for size, _ in op.layers}) and k % op.deep == 0
        problem = op.problem(m, n, k, groups)
        if (fits or op.grouped) and m * n * k <= LARGEST and problem not in found:
            found.add(problem)
            draws = 0
            yield Drawn(op.name, problem)
