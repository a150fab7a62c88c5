"""Time GEMMs with weights as checkpoints have them, with a scale for each group: our kernels against dequantisation and
cuBLAS, and int4 ones against `_weight_int4pack_mm` with the same numbers in tinygemm's layout.

    python -m benchmarks.int4_words OUT.db
    python -m benchmarks.int4_words OUT.db --kinds int8 uint8x4 --rows 1 16 64
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gemmdb.devices.detect import cuda
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.kernels.config import ATEN
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table.reader import Table

SHAPES = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
"""N and K of Llama-3-8B's layers."""
ROWS = [1, 16, 64]
TILED: dict[str, Any] = {"weight_dtype": "int4", "packing": "tinygemm8"}
KINDS: dict[str, dict[str, Any]] = {
    "gptq": {"weight_dtype": "int4", "packing": "gptq"},
    "awq": {"weight_dtype": "int4", "packing": "awq"},
    "plain": {"weight_dtype": "int4", "packing": "plain"},
    "int4-zeros": {"weight_dtype": "int4", "packing": "low-first", "zeros": "int4"},
    "int8": {"weight_dtype": "int8", "group": 128},
    "uint8x4": {"weight_dtype": "uint8", "zeros": "uint8x4"},
    "mxfp4": {"weight_dtype": "fp4_e2m1"},
}
"""The flags of a problem by the name of its weight."""


def entries(kinds: Sequence[str], rows: Sequence[int]) -> list[dict[str, object]]:
    """Return the shapes file: bf16, groups of 128, of 32 for MXFP4."""
    fields = {"op": "mixed_mm", "m": list(rows), "dtype": "bf16"}
    flags = [KINDS[kind] for kind in kinds]
    flags += [TILED] if any(one["weight_dtype"] == "int4" for one in flags) else []
    return [fields | {"n": n, "k": k} | one for n, k in SHAPES for one in flags]


def problem(m: int, n: int, k: int, flags: dict[str, Any]) -> Problem:
    """Return a problem of the shapes file."""
    return Problem.gemm("mixed_mm", m=m, n=n, k=k, **flags)


def results(
    table: Table, device: Device, kinds: Sequence[str], rows: Sequence[int]
) -> Iterator[tuple[str, Problem, str, list[float]]]:
    """Yield (kind, problem, fastest config, its gain over ATen, and for int4 that over `_weight_int4pack_mm`)."""
    for (n, k), kind, m in ((size, one, m) for size in SHAPES for one in kinds for m in rows):
        wanted = problem(m, n, k, KINDS[kind])
        times = _times(table, wanted, device)
        ours = {text: us for text, us in times.items() if text != ATEN.text}
        if not ours or ATEN.text not in times:
            continue
        best = min(ours, key=ours.__getitem__)
        tiled = _times(table, problem(m, n, k, TILED), device).get(ATEN.text)
        others = [times[ATEN.text], *([] if tiled is None or KINDS[kind]["weight_dtype"] != "int4" else [tiled])]
        yield kind, wanted, best, [ours[best], *(other / ours[best] for other in others)]


def _times(table: Table, one: Problem, device: Device) -> dict[str, float]:
    return {row.config.text: row.times.median_us for row in table.rows(one, device) if row.times}


def main() -> None:
    """Build a table of the GEMMs, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the table to write")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=["gptq", "awq"])
    parser.add_argument("--minutes", type=float, help="after this time no new GEMM starts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shapes = Path(folder) / "shapes.json"
        shapes.write_text(json.dumps(entries(options.kinds, options.rows)))
        build(BuildRequest(arch="native", shapes=str(shapes), out=options.out, minutes=options.minutes))
    device = cuda()
    assert device is not None
    gains: dict[tuple[str, int], list[list[float]]] = {}
    with Table.open(options.out) as table:
        for kind, one, best, (us, *over) in results(table, device, options.kinds, options.rows):
            print(f"{kind:10} {one.m:3} x {one.n} x {one.k}: {us:7.1f} us, {_words(over)}, {best}")
            gains.setdefault((kind, one.m), []).append(over)
    for (kind, m), found in gains.items():
        # A build that ended early may lack some times in tinygemm's layout.
        means = [statistics.geometric_mean(column) for column in zip(*found, strict=False)]
        print(f"{kind:10} {m:3} rows: {_words(means)}")


def _words(gains: Sequence[float]) -> str:
    names = ("dequantisation and cuBLAS", "_weight_int4pack_mm")
    return ", ".join(f"{gain:.2f}x of {name}" for gain, name in zip(gains, names, strict=False))


if __name__ == "__main__":
    main()
