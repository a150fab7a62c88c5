"""How long a lookup takes in a table with a million verdicts, compared with a dict and PyTorch's LookupTableChoices.

    python -m benchmarks.torch lookup [--problems 1000000] [--file FILE] [--out FILE]

All timed problems are distinct, so every figure includes the making of the key of a new Problem. The dict maps
canonical texts to ready answers; no file can be faster. LookupTableChoices is timed for making its key alone, from the
sizes and strides of ready-made Inductor nodes; it then looks the key up in a dict. The table is made here in bulk, with
the real schema and canonical forms, and with invented times.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gemmdb
from gemmdb import Config, Device, Measurement, Problem, Protocol, Status, Toolchain
from gemmdb.devices import detect
from gemmdb.kernels.config import ATEN
from gemmdb.table.measurement import Times
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Verdict
from gemmdb.table.verdict_rows import verdict_values
from gemmdb.table.writer import Store

DEVICE = Device("cpu", "cpu", "Benchmark CPU", 2)
PROTOCOL = Protocol("host", "cold", 10, 30, version=3)
TIMED = 20_000
"""Problems looked up for one figure."""
ROUNDS = 5
"""Repeats of a warm figure, each with other problems."""
WARM = 150_000
"""Problems looked up before the figure of a warm process."""
COLD = 200
"""Opens for the figure of a cold open."""

PROCESS = """
import json, sys, time
start = time.perf_counter()
from pathlib import Path
from gemmdb import Device, Problem
from gemmdb.table.reader import Table
imported = time.perf_counter()
problem, device = Problem.parse(sys.argv[2]), Device.parse(sys.argv[3])
ready = time.perf_counter()
verdict = Table.open(Path(sys.argv[1]), immutable=True).verdict(problem, device)
done = time.perf_counter()
assert verdict is not None
print(json.dumps([1e3 * (imported - start), 1e3 * (done - ready)]))
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--problems", type=int, default=1_000_000, help="problems in the table")
    parser.add_argument("--file", type=Path, help="keep the table in FILE, or use the one that is there")
    parser.add_argument("--out", type=Path, help="where to write the result as well")


def main(options: argparse.Namespace) -> None:
    """Make the table unless it is there, time, write and print."""
    with tempfile.TemporaryDirectory() as folder:
        path = options.file or Path(folder) / "million.db"
        sizes = _sizes(options.problems)
        if not path.exists():
            _make(path, sizes)
        result = _report(path, sizes)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def _report(path: Path, sizes: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
    return {
        "what": "microseconds of one lookup by distinct problems, key making included",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "verdicts": len(sizes),
        "file_mib": round(path.stat().st_size / 2**20, 1),
        "versions": {
            "gemmdb": gemmdb.__version__,
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "cpu": detect.cpu().sku,
        },
        "key_us": _quantiles(_times(lambda problem: problem.key, sizes)),
        "warm_us": {
            "immutable, as shipped tables are opened": _warm(path, sizes, immutable=True),
            "may be written, as the user's are": _warm(path, sizes, immutable=False),
        },
        "cold_open_ms": {
            "immutable": _cold(path, sizes, immutable=True),
            "may be written": _cold(path, sizes, immutable=False),
        },
        "new_process_ms": _process(path, sizes),
        "dict_us": _dict(sizes),
        "lookup_table_choices_key_us": _torch(sizes),
    }


def _sizes(count: int) -> list[tuple[int, int, int]]:
    """Distinct (M, N, K) in random order, the same for the same count."""
    draw = random.Random(count)
    found: set[tuple[int, int, int]] = set()
    while len(found) < count:
        found.add((draw.randrange(1, 4096), 8 * draw.randrange(1, 3500), 8 * draw.randrange(1, 3500)))
    ordered = sorted(found)
    draw.shuffle(ordered)
    return ordered


def _problems(sizes: Iterable[tuple[int, int, int]]) -> Iterator[Problem]:
    """New objects, in four families. Nothing about them has been computed yet."""
    kinds = (
        Problem.gemm("mm", m=1, n=8, k=8, dtype="bf16"),
        Problem.gemm("mm", m=1, n=8, k=8, dtype="fp32", constant_weight=True),
        Problem.gemm("addmm", m=1, n=8, k=8, dtype="bf16"),
        Problem.gemm("mixed_mm", m=1, n=8, k=8, dtype="bf16", fusion="scale"),
    )
    for size in sizes:
        yield kinds[sum(size) % len(kinds)].resized(*size)


def _make(path: Path, sizes: Sequence[tuple[int, int, int]]) -> None:
    """The table of one verdict per problem, of 400 configs in tie sets of one to five."""
    toolchain = Toolchain(torch="2.13.0+cpu")
    configs = [ATEN, *(_packed(m, n) for m in range(20) for n in range(20))]
    draw = random.Random(0)
    with Store.open(path) as store:
        # The Store writes the configs, device, protocol and toolchain of all verdicts, with the first problem.
        times = Times(9.0, 8.9, 9.1, 30, 9.0)
        first = next(_problems(sizes))
        store.add(
            Measurement(first, config, DEVICE, PROTOCOL, toolchain, "bulk", Status.OK, times) for config in configs
        )
        store.refresh()
    with closing(sqlite3.connect(path)) as db:
        for start in range(0, len(sizes), 50_000):
            problems = sorted(_problems(sizes[start : start + 50_000]), key=lambda p: p.key)
            db.executemany(
                "INSERT OR IGNORE INTO problem VALUES (?, ?, ?, ?, ?, ?, ?)",
                ((p.key, p.text, p.op, p.m, p.n, p.k, p.family_key) for p in problems),
            )
            verdicts = (
                Verdict(p, DEVICE, PROTOCOL, toolchain, tuple(draw.sample(configs, ties)), 0.5, 0.01, 10.0, 1)
                for p in problems
                for ties in draw.choices((1, 2, 3, 5), (12, 4, 2, 1))
            )
            marks = ", ".join("?" * 11)
            db.executemany(f"INSERT OR REPLACE INTO verdict VALUES ({marks})", map(verdict_values, verdicts))
        db.commit()


def _packed(threads_m: int, threads_n: int) -> Config:
    rest = dict.fromkeys(("threads_k", "blocks_m", "blocks_n", "blocks_k"), 0)
    return Config.of("cpp", "packed_gemm", threads_m=threads_m, threads_n=threads_n, **rest)


def _times(call: Callable[[Problem], Any], sizes: Sequence[tuple[int, int, int]]) -> list[float]:
    """Microseconds of each call, each with a problem of its own."""
    found = []
    for problem in _problems(sizes[:TIMED]):
        start = time.perf_counter_ns()
        answer = call(problem)
        found.append((time.perf_counter_ns() - start) / 1e3)
        assert answer is not None
    return found


def _warm(path: Path, sizes: Sequence[tuple[int, int, int]], immutable: bool) -> dict[str, Any]:
    """The fastest round, because other programs on the machine only add time, and the medians of all rounds."""
    with Table.open(path, immutable=immutable) as table:
        # Other problems, enough of them to touch nearly every page of the file once.
        for problem in _problems(sizes[-WARM:]):
            table.verdict(problem, DEVICE)
        rounds = [
            _quantiles(_times(lambda problem: table.verdict(problem, DEVICE), sizes[start : start + TIMED]))
            for start in range(0, ROUNDS * TIMED, TIMED)
        ]
    return {**min(rounds, key=lambda found: found["median"]), "medians": [found["median"] for found in rounds]}


def _cold(path: Path, sizes: Sequence[tuple[int, int, int]], immutable: bool) -> dict[str, float]:
    found = []
    for problem in _problems(sizes[:COLD]):
        start = time.perf_counter_ns()
        table = Table.open(path, immutable=immutable)
        verdict = table.verdict(problem, DEVICE)
        found.append((time.perf_counter_ns() - start) / 1e6)
        assert verdict is not None
        table.close()
    return _quantiles(found)


def _process(path: Path, sizes: Sequence[tuple[int, int, int]]) -> dict[str, float]:
    """In a process that has imported nothing: milliseconds of the imports, and of opening and looking up after them."""
    runs = []
    for problem in _problems(sizes[:10]):
        command = [sys.executable, "-c", PROCESS, str(path), problem.text, DEVICE.text]
        runs.append(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))
    imports, lookups = zip(*runs, strict=True)
    return {"imports": round(statistics.median(imports), 3), "open and lookup": round(statistics.median(lookups), 3)}


def _dict(sizes: Sequence[tuple[int, int, int]]) -> dict[str, float]:
    answers = {problem.text: ATEN for problem in _problems(sizes)}
    return _quantiles(_times(lambda problem: answers[problem.text], sizes))


def _torch(sizes: Sequence[tuple[int, int, int]]) -> dict[str, float] | str:
    try:
        import torch
        from torch._inductor.graph import GraphLowering
        from torch._inductor.ir import FixedLayout, InputBuffer
        from torch._inductor.kernel_inputs import MMKernelInputs
        from torch._inductor.lookup_table.choices import LookupTableChoices
        from torch._inductor.virtualized import V
    except ImportError as error:
        return f"not measured: {error}"

    def buffer(name: str, rows: int, columns: int) -> Any:
        layout = FixedLayout(torch.device("cpu"), torch.bfloat16, [rows, columns], [columns, 1])
        return InputBuffer(name=name, layout=layout)

    found = []
    with V.set_graph_handler(GraphLowering(torch.fx.symbolic_trace(torch.nn.Identity()))):
        for m, n, k in sizes[: TIMED // 4]:
            inputs = MMKernelInputs([buffer("a", m, k), buffer("b", k, n)])
            start = time.perf_counter_ns()
            key = LookupTableChoices._generate_kernel_inputs_key(inputs) + "+mm"
            found.append((time.perf_counter_ns() - start) / 1e3)
            assert key
    return {**_quantiles(found), "torch": torch.__version__}


def _quantiles(values: Sequence[float]) -> dict[str, Any]:
    cuts = statistics.quantiles(values, n=100)
    return {"median": round(statistics.median(values), 3), "p10": round(cuts[9], 3), "p99": round(cuts[98], 3)}
