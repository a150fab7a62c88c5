"""Print whether the fastest kernel of a size is faster than ATen with fewer rows, from the archives of a build.

    python -m benchmarks.dense between ROWS.jsonl.xz...

Each pair of sizes is one GEMM with two numbers of rows within a factor of two, where a kernel is the fastest and at
least 2% faster than ATen with more rows, and was timed with fewer, perhaps by a short estimate alone. A pair is `safe`
if the kernel takes no longer with more rows than ATen with fewer, and no longer with fewer rows than with more: an
algorithm of cuBLASLt may (`gemmdb.cublaslt.tiles.reads_once`). `slower` is the share of pairs where the kernel is over
2% and over 5% slower than ATen with fewer rows. So a symbolic compile serves a kernel between two sizes only if that is
safe (`gemmdb.lookup.acceptance.by_rows`).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.dense.report import mean
from benchmarks.dense.sample import STRATA, stratum
from gemmdb.generators.files import archive
from gemmdb.kernels.config import ATEN, Config
from gemmdb.lookup.acceptance.by_rows import takes_no_longer_with_fewer_rows
from gemmdb.table.measurement import Measurement, Status

LEAST_GAIN = 1.02
KERNELS = {"cublaslt": "cuBLASLt's algorithms", "triton": "Triton kernels"}
"""Titles by backend."""


class Timed(NamedTuple):
    """The configs of one GEMM with one number of rows: the time of each relative to ATen's, whether it was timed in
    full, and ATen's microseconds."""

    ratios: Mapping[Config, tuple[float, bool]]
    aten_us: float


class Pair(NamedTuple):
    """A kernel that is the fastest with `m` rows: its `gain` over ATen with fewer rows, and whether it is `safe`."""

    backend: str
    m: int
    gain: float
    safe: bool


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("files", type=Path, nargs="+", metavar="ROWS", help="archives of a build")


def main(options: argparse.Namespace) -> None:
    """Print the shares."""
    found = list(pairs(row for path in options.files for row in archive.read(path)))
    print("\n".join(text(found)))


def pairs(rows: Iterable[Measurement]) -> Iterator[Pair]:
    """The pairs of sizes, from the rows of mm and addmm without an epilogue."""
    by_gemm: dict[object, dict[int, list[Measurement]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        problem = row.problem
        if problem.op in ("mm", "addmm") and problem.epilogue is None and row.times is not None:
            alike = problem.resized(1, problem.n, problem.k), row.device, row.protocol.clock, row.protocol.l2
            by_gemm[alike][problem.m].append(row)
    for sizes in by_gemm.values():
        yield from _pairs({m: _timed(group) for m, group in sorted(sizes.items())})


def _timed(rows: Sequence[Measurement]) -> Timed:
    found: dict[Config, tuple[float, bool]] = {}
    for row in rows:
        assert row.times is not None
        one = row.times.median_us / row.times.aten_us, row.status is Status.OK
        if row.config not in found or (one[1] and not found[row.config][1]):
            found[row.config] = one
    return Timed(found, median(row.times.aten_us for row in rows if row.times is not None))


def _pairs(sizes: Mapping[int, Timed]) -> Iterator[Pair]:
    for m, timed in sizes.items():
        ratio, _, config = min(
            ((ratio, config.text, config) for config, (ratio, full) in timed.ratios.items() if full),
            default=(1.0, "", ATEN),
        )
        if config.backend not in KERNELS or ratio * LEAST_GAIN > 1:
            continue
        for fewer, other in sizes.items():
            if m <= 2 * fewer < 2 * m and config in other.ratios:
                safe = ratio * timed.aten_us <= other.aten_us and takes_no_longer_with_fewer_rows(config, m)
                yield Pair(config.backend, m, 1 / other.ratios[config][0], safe)


def text(found: Sequence[Pair]) -> Iterator[str]:
    """The shares as Markdown."""
    yield "| kernels | M | safe | pairs | gain with fewer rows | slower by 2% | by 5% |"
    yield "|---|---|---|---|---|---|---|"
    for backend, title in KERNELS.items():
        for low, high in STRATA:
            for safe in (True, False):
                alike = (one for one in found if one.backend == backend and one.safe is safe)
                if group := [one.gain for one in alike if low <= one.m <= high]:
                    shares = [sum(gain < 1 - loss for gain in group) / len(group) for loss in (0.02, 0.05)]
                    words = [title, stratum(low), "yes" if safe else "no", f"{len(group)}", f"{mean(group):.3f}x"]
                    yield f"| {' | '.join([*words, *(f'{share:.0%}' for share in shares)])} |"
