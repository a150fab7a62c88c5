"""Files that reports are about, made of invented times: their pages look the same on every machine."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.report.rows import floor_us
from gemmdb.table.catalog import Catalog, Source
from gemmdb.table.measurement import DISTURBED, Measurement
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store
from gemmdb.workload.entries import Entry, Origin
from kit.devices import H200
from kit.lab import rows

SIZES = (512, 1024, 2048, 4096, 8192, 16384)
PADDED = Config.of("aten", "padded", multiple=8)
RUNS = (
    {"started": "2026-01-02T03:04:05+00:00", "request": {"shapes": "decode", "effort": "standard"}},
    {"started": "2026-01-02T09:04:05+00:00", "request": {"shapes": "prefill", "effort": "standard"}},
    {"started": "2026-01-05T03:04:05+00:00", "request": {"shapes": "my-workload.jsonl", "effort": "quick"}},
)


def tile(m: int = 64, n: int = 64, k: int = 64) -> Config:
    """A Triton kernel."""
    shape = {"block_m": m, "block_n": n, "block_k": k, "warps": 4, "stages": 3, "split_k": 1, "group_m": 8, "swap": 0}
    return Config.of("triton", "tile", **shape, load="pointer", dequant="cast", reduce="none")


def _problem(op: str, m: int, n: int, k: int) -> Problem:
    return Problem.gemm(op, m=m, n=n, k=k, constant_weight=True)


def _timings() -> Iterator[Measurement]:
    """Times by a formula: kernels gain where M is small, ATen wins in the middle, and padding where N is odd."""
    for place, (op, m, n, k) in enumerate(
        (name, 2**power, n, k) for name, step in (("mm", 1), ("addmm", 2)) for power in range(0, 14, step)
        for n in SIZES for k in SIZES
    ):  # fmt: skip
        one = _problem(op, m, n + (6 if m > 2000 and n == 512 else 0), k)
        ratio = 0.6 + 0.08 * math.log2(m) / 2 + 0.05 * math.sin(place) + (0.1 if op == "addmm" else 0.0)
        ratios = {tile(): ratio, tile(16): ratio + 0.004 * (place % 3)}
        if one.n % 8:
            ratios[PADDED] = 0.7
        spread, us = 0.002 * (1 + place % 9), floor_us(one, H200) * (1.6 + 0.5 * math.cos(place))
        for row in rows(one, ratios, aten_us=us, device=H200, spread=spread, run=f"run{place % 3}"):
            yield replace(row, detail=DISTURBED) if place % 97 == 0 else row


def table(folder: Path) -> Path:
    """A table of more results than a chart draws as points."""
    path = folder / "example.db"
    with Store.open(path) as store:
        for place, run in enumerate(RUNS):
            store.begin_run({"run": f"run{place}", "command": ["gemmdb", "build"], **run})
        store.add(_timings())
        store.refresh()
    return path


def workload(folder: Path) -> Path:
    """A workload with each outcome: `catalog` answers it."""
    path, here = folder / "serve.jsonl", H200.text
    found = [_problem("mm", m, n, k) for m in (1, 16) for n, k in ((4096, 4096), (16384, 4096), (4096, 16384))]
    entries = [Entry(one, count=32, calls=3200, device=here) for one in found]
    best = [_problem("mm", 2048, n, 4096) for n in (4096, 8192)]
    entries += [Entry(one, count=4, calls=40, device=here) for one in best]
    entries.append(Entry(_problem("mm", 17, 4096, 4096), count=2, calls=900, device=here))
    activated = replace(best[0], fusion="pointwise:math")
    entries.append(Entry(activated, count=4, calls=40, device=here))
    entries.append(Entry(_problem("mm", 16, 8192, 4096), count=2, calls=900, device=here, ranges=(("m", 1, 64),)))
    entries += [Entry(Problem.gemm("int_mm", m=64, n=n, k=4096), count=32, calls=900, device=here) for n in SIZES[1:4]]
    packed = Problem.gemm("mm", m=8, n=640, k=640, dtype="fp32")
    cpu = Device("cpu", "cpu", "Example CPU", 2, isa="avx2").text
    entries.append(Entry(packed, calls=90, device=cpu, origins=(Origin("layers.0.mlp", "serve.py:12"),)))
    other = json.dumps({"uncovered": "baddbmm", "count": 2, "calls": 80})
    path.write_text("\n".join([*(entry.line for entry in entries), other]))
    return path


def catalog(folder: Path) -> Catalog:
    """The table alone."""
    path = table(folder)
    return Catalog([(Source(path, "explicit"), Table.open(path))])


def comparison(folder: Path, kernels: bool = True) -> Path:
    """A program that is faster with gemmdb; or, without `kernels`, one whose GEMMs ATen runs on both sides."""
    path = folder / "run.json"
    listed = [
        (6144, tile(16), "exact", 14.0, 1.3), (4096, tile(64), "near", 10.0, 1.15), (28672, ATEN, "exact", 60.0, 1.0),
        (128256, ATEN, "aten", None, None),
    ]  # fmt: skip
    products = [
        {"problem": _problem("mm", 16, n, 4096).text, "config": (config if kernels else ATEN).text, "rung": rung,
         "expected_us": us, "speedup_vs_aten": gain if kernels or gain is None else 1.0, "count": 32, "note": ""}
        for n, config, rung, us, gain in listed
    ]  # fmt: skip
    found = {
        "default_us": 4300.0, "gemmdb_us": 4100.0, "error": 0.0, "products": products, "interval": [1.03, 1.06],
        "slower": {products[1]["problem"]: 12.0} if kernels else {}, "together_us": 0.0, "verdict": "faster",
    }  # fmt: skip
    path.write_text(json.dumps(found))
    return path
