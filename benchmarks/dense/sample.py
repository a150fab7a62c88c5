"""Draw dense GEMMs that no preset and no shipped table lists.

    python -m benchmarks.dense sample --out SAMPLE.jsonl [--count 240] [--seed 1] [--op mm] [--dtype bf16]

Their M come from four ranges in turn: 17 to 64, 65 to 256, 257 to 1,024, and 1,025 to 4,096. Half of them are layers of
public models that the preset `dense` does not list, the others have random multiples of 64 or 128 as N and K. An (N, K)
of any preset or shipped table is left out. Any prefix has the same shares. The file is also one of shapes:
`gemmdb build --shapes SAMPLE.jsonl` measures the same problems.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import json_lines
from benchmarks.dense import models
from benchmarks.dense.models import Layer
from gemmdb.generators import shapes
from gemmdb.key.problem import Problem
from gemmdb.settings import shipped_tables
from gemmdb.table.reader import Table

STRATA = ((17, 64), (65, 256), (257, 1024), (1025, 4096))
"""Ranges of M, both ends included."""
LEAST, MOST = 512, 20_000
"""The range of random N and K, log-uniform."""
STEPS = (64, 128)
"""What random N and K are multiples of."""
LARGEST = 2**39
"""The largest M x N x K, which takes 1.7 ms in bf16."""
ROUND_SHARE = 0.5
"""The share of M that are multiples of 8: programs pad their batches, or do not."""


@dataclass(frozen=True)
class Drawn:
    """A problem of a sample. `origin`: `layer` or `random`, where its N and K come from."""

    problem: Problem
    origin: str

    @property
    def line(self) -> str:
        """The problem as a line of a sample."""
        return json.dumps({"problem": self.problem.text, "origin": self.origin})


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--count", type=int, default=240, help="how many problems; default: 240")
    parser.add_argument("--seed", type=int, default=1, help="draws the problems; default: 1")
    parser.add_argument("--op", choices=("mm", "addmm"), default="mm", help="default: mm")
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16", help="default: bf16")


def main(options: argparse.Namespace) -> None:
    """Draw and write."""
    drawn = draw(options.count, options.seed, options.op, options.dtype)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("".join(one.line + "\n" for one in drawn))
    print(f"{options.out}: {len(drawn)} problems, {sum(one.origin == 'layer' for one in drawn)} of them layers")


def read(path: Path) -> list[Drawn]:
    """The problems of a sample."""
    if not path.exists():
        raise FileNotFoundError(2, "No such file", str(path))
    return [Drawn(Problem.parse(line["problem"]), line["origin"]) for line in json_lines(path)]


def draw(count: int, seed: int, op: str = "mm", dtype: str = "bf16") -> list[Drawn]:
    """The first `count` problems of a seed."""
    source, known = random.Random(f"dense {seed}"), listed_sizes()
    fresh = [layer for layer in models.layers_of(models.UNSEEN.values()) if (layer.n, layer.k) not in known]
    found: dict[Problem, Drawn] = {}
    while len(found) < count:
        low, high = STRATA[len(found) % len(STRATA)]
        origin = "layer" if len(found) // len(STRATA) % 2 == 0 else "random"
        m = rows(source, low, high)
        n, k = real(source, fresh, m) if origin == "layer" else invented(source)
        if (n, k) not in known and m * n * k <= LARGEST:
            problem = Problem.gemm(op, m=m, n=n, k=k, dtype=dtype)
            found.setdefault(problem, Drawn(problem, origin))
    return list(found.values())


def stratum(m: int) -> str:
    """The name of M's range."""
    low, high = next((low, high) for low, high in STRATA if low <= m <= high)
    return f"{low:,} to {high:,}"


def listed_sizes() -> set[tuple[int, int]]:
    """(N, K) of all presets and of all shipped tables."""
    found = {(problem.n, problem.k) for name in shapes.presets() for problem in shapes.load(name, "cuda")}
    for path in shipped_tables().glob("*.db"):
        with Table.open(path, immutable=True) as table:
            found |= {(problem.n, problem.k) for problem, _ in table.pairs()}
    return found


def rows(source: random.Random, low: int, high: int) -> int:
    """A log-uniform M, as often as ROUND_SHARE says a multiple of 8."""
    m = between(source, low, high)
    return max(m // 8 * 8, -(-low // 8) * 8) if source.random() < ROUND_SHARE else m


def real(source: random.Random, fresh: list[Layer], m: int) -> tuple[int, int]:
    """N and K of a model's layer. An lm_head runs on few rows only."""
    layer = source.choice([one for one in fresh if one.role != "head" or m <= models.HEAD_ROWS])
    return layer.n, layer.k


def invented(source: random.Random) -> tuple[int, int]:
    """Random multiples of one of STEPS."""
    step = source.choice(STEPS)
    n, k = (max(between(source, LEAST, MOST) // step * step, step) for _ in range(2))
    return n, k


def between(source: random.Random, low: int, high: int) -> int:
    """A log-uniform integer from `low` to `high`."""
    return min(int(math.exp(source.uniform(math.log(low), math.log(high + 1)))), high)
