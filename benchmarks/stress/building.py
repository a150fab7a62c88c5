"""Build a table while eight processes compile against its file, and compare it with that of an undisturbed build.

    python -m benchmarks.stress building [--processes 8] [--pause 0] [--out benchmarks/results/load/building.jsonl]

A build of a few GEMMs for this CPU measures in processes of its own. Meanwhile each of the others, forked from one
that imported torch, compiles a model of one of these GEMMs again and again, each time from nothing, and once more
when the build has ended. A process fails if a result is not what eager computes, if gemmdb reports an error, or if its
last compile does not get what the table picks in the end. `compiles`: of all processes, by the rung that answered while
the build went on (`aten`: no row yet). `missing`, `more`, `untimed` and `given_up` compare the rows, as in `kills`. The
result is one line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.common import now, write_shapes
from benchmarks.stress import compiles, crowd, kills
from benchmarks.stress.contents import contents, differences
from benchmarks.stress.rows import OUT
from gemmdb.devices import detect
from gemmdb.generators.files.verify import verify
from gemmdb.key.problem import Problem
from gemmdb.settings import Policy
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

_context = multiprocessing.get_context("fork")
SIZE = 64
"""N and K of all GEMMs."""


def product(m: int) -> Problem:
    """The GEMM of a model with `m` rows."""
    return Problem.gemm("mm", m=m, n=SIZE, k=SIZE, dtype="fp32", constant_weight=True)


def compile_while(path: Path, m: int, stop: Any, pause_s: float) -> list[str]:
    """Compile a model with `m` rows until the event is set, with a pause after each, and once after that. The rungs
    that answered, the last one apart from the others at the end. Raises AssertionError for a wrong result, an error of
    gemmdb's, or a last answer that is not the table's pick."""
    import gemmdb.inductor

    # A pick that gains less than `min_gain` is not served.
    gemmdb.inductor.enable(tables=path, policy=Policy(on_miss="aten", min_gain=0.0))
    rungs = []
    while not stop.is_set():
        rungs.append(_compile(m)["rung"])
        stop.wait(pause_s)
    last = _compile(m)
    with contextlib.closing(Table.open(path)) as table:
        verdict = table.verdict(product(m), detect.cpu())
    assert verdict is not None
    assert (last["rung"], last["config"]) == ("exact", verdict.pick.text), (last, verdict.pick.text)
    return [*rungs, last["rung"]]


def _compile(m: int) -> dict[str, Any]:
    """What `stats()` says of the GEMM of one compile."""
    import torch

    import gemmdb.inductor

    torch.compiler.reset()
    gemmdb.inductor.reset_stats()
    model, given = torch.nn.Linear(SIZE, SIZE, bias=False).eval(), torch.randn(m, SIZE)
    fresh = {"freezing": True, "force_disable_caches": True}
    with torch.no_grad(), torch._inductor.config.patch(fresh):
        wanted, found = model(given), torch.compile(model)(given)
    assert torch.allclose(found, wanted, rtol=0, atol=compiles.BOUND), (found - wanted).abs().max()
    stats = gemmdb.inductor.stats()
    assert stats["errors"] == [], stats["errors"]
    (one,) = stats["products"]
    assert one["note"] == "" or one["rung"] == "aten", one
    return dict(one)


def measured(folder: Path, processes: int, rows: list[int], pause_s: float) -> dict[str, Any]:
    """What a build beside so many processes gives, compared with an undisturbed one."""
    shapes = write_shapes(folder / "shapes.jsonl", [product(m) for m in rows])
    builds = kills.Campaign(folder, shapes, 0.0, random.Random(1))
    start = time.monotonic()
    wanted = builds.undisturbed(folder / "undisturbed.db")
    alone, path = time.monotonic() - start, folder / "table.db"
    with Store.open(path):
        pass  # An empty table: compiles begin before the first row is there.
    stop, told = _context.Event(), _context.Queue()
    others = [
        _context.Process(target=_tell, args=(path, rows[number % len(rows)], stop, told, pause_s))
        for number in range(processes)
    ]
    for other in others:
        other.start()
    start = time.monotonic()
    code = builds.start(path, "disturbed").wait()
    seconds = time.monotonic() - start
    stop.set()
    found = [told.get(timeout=crowd.PATIENCE_S) for _ in others]
    for other in others:
        other.join()
    errors = [one for one in found if isinstance(one, str)]
    rungs = Counter(rung for one in found if isinstance(one, list) for rung in one[:-1])
    return {
        "build_alone_s": round(alone, 1), "build_s": round(seconds, 1), "code": code, "compiles": dict(rungs),
        "last": len(found) - len(errors), "pairs": len(wanted), **differences(wanted, contents(path)),
        "findings": [str(finding) for finding in verify(path)], "errors": len(errors), "error": "".join(errors[:1]),
    }  # fmt: skip


def _tell(path: Path, m: int, stop: Any, told: Any, pause_s: float) -> None:
    try:
        told.put(compile_while(path, m, stop, pause_s))
    except BaseException:
        told.put(traceback.format_exc(limit=-3))


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--pause", type=float, default=0.0, metavar="S", help="between the compiles of a process")
    parser.add_argument("--rows", type=int, nargs="+", default=list(kills.SIZES), help="M of each GEMM")
    parser.add_argument("--out", type=Path, default=OUT / "building.jsonl", help="the file of results")


def main(options: argparse.Namespace) -> None:
    """Build twice, append the result and print it."""
    with tempfile.TemporaryDirectory() as folder:
        compiles.prepare(Path(folder), options.processes)
        found: dict[str, Any] = {"date": now(), "cores": os.cpu_count(), "processes": options.processes}
        found |= measured(Path(folder), options.processes, options.rows, options.pause)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("a") as file:
        file.write(json.dumps(found) + "\n")
    print(json.dumps(found, indent=1))
