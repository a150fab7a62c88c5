"""Time GEMMs with GPTQ's and AWQ's weights: our kernel against dequantisation and cuBLAS, and against
`_weight_int4pack_mm` with the same numbers in tinygemm's layout.

    python -m benchmarks.int4_words OUT.db
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gemmdb.devices.detect import cuda
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table.reader import Table

SHAPES = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
"""N and K of Llama-3-8B's layers."""
ROWS = [1, 16, 64]
PACKINGS = ["gptq", "awq"]
TILED = "tinygemm8"


def entries(rows: Sequence[int]) -> list[dict[str, object]]:
    """Return the shapes file: bf16, groups of 128."""
    fields = {"op": "mixed_mm", "m": list(rows), "weight_dtype": "int4", "dtype": "bf16", "group": 128}
    return [fields | {"n": n, "k": k, "packing": one} for n, k in SHAPES for one in (*PACKINGS, TILED)]


def results(table: Table, device: Device, rows: Sequence[int]) -> Iterator[tuple[Problem, str, float, float, float]]:
    """Yield (problem, fastest config, its microseconds, ATen's, those of `_weight_int4pack_mm`)."""
    for (n, k), packing, m in ((size, one, m) for size in SHAPES for one in PACKINGS for m in rows):
        problem = Problem.gemm("mixed_mm", m=m, n=n, k=k, weight_dtype="int4", packing=packing)
        times = _times(table, problem, device)
        tiled = _times(table, replace(problem, int4=Problem.gemm(
            "mixed_mm", m=m, n=n, k=k, weight_dtype="int4", packing=TILED).int4), device)  # fmt: skip
        ours = {text: us for text, us in times.items() if text != ATEN.text}
        if not ours or ATEN.text not in times or ATEN.text not in tiled:
            continue
        best = min(ours, key=ours.__getitem__)
        yield problem, best, ours[best], times[ATEN.text], tiled[ATEN.text]


def _times(table: Table, problem: Problem, device: Device) -> dict[str, float]:
    rows = table.rows(problem, device)
    return {row.config.text: row.times.median_us for row in rows if row.times}


def main() -> None:
    """Build a table of the GEMMs, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the table to write")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shapes = Path(folder) / "shapes.json"
        shapes.write_text(json.dumps(entries(options.rows)))
        build(BuildRequest(arch="native", shapes=str(shapes), out=options.out))
    device = cuda()
    assert device is not None
    gains: dict[tuple[str, int], list[tuple[float, float]]] = {}
    with Table.open(options.out) as table:
        for problem, best, us, aten, tiled in results(table, device, options.rows):
            assert problem.int4 is not None
            print(f"{problem.int4.packing:5} {problem.m:3} x {problem.n} x {problem.k}: {us:7.1f} us,"
                  f" {aten / us:5.2f}x of cuBLAS, {tiled / us:5.2f}x of _weight_int4pack_mm, {best}")  # fmt: skip
            gains.setdefault((problem.int4.packing, problem.m), []).append((aten / us, tiled / us))
    for (packing, m), pairs in gains.items():
        means = (statistics.geometric_mean(one) for one in zip(*pairs, strict=True))
        print(f"{packing:5} {m:3} rows: {next(means):.2f}x of cuBLAS, {next(means):.2f}x of _weight_int4pack_mm")


if __name__ == "__main__":
    main()
