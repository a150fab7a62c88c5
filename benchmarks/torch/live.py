"""What live tuning costs and finds, with the defaults that a user has, in fresh processes.

    python -m benchmarks.torch live --out benchmarks/results/offtable/live-h200.json   # on a GPU: about three minutes
    python -m benchmarks.torch live --out benchmarks/results/offtable/live-cpu.json --device cpu

Rung `near` is off, so that everything is a miss, and everything counts as worth tuning. A process with empty caches
compiles three graphs whose products no table has: one product, another one, and all the others together. The times are
those of the first call of each graph, in seconds; `tuning` is the share of live tuning in them, and `device_s` the
seconds of timed calls on the GPU. A second process compiles the same graphs with the table that the first one left:
everything must be an exact hit. Then the generator searches the same problems (effort `quick`: our own kernels).
`share` is the best known time of a problem, from either, over the time of what live tuning served, each relative to the
ATen that was interleaved with it. `--wait 30` lets each GEMM take as long as it needs, and `spent` says what it
waits for. On a CPU, where the default leaves misses alone, live tuning is asked for by name,
and the weights are constants.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.command import command
from benchmarks.common import write_shapes


def child(device: str, wait: float | None) -> dict[str, Any]:
    """Compile the graphs one after the other, in this process."""
    import torch
    import torch._inductor.config as inductor_config

    import gemmdb.inductor
    from benchmarks.torch import live_model
    from gemmdb.inductor.benchmark import limits

    if wait is not None:
        limits.FIRST_S = limits.FURTHER_S = wait
    torch.manual_seed(0)
    # Some of the GEMMs may have measured neighbours, and some may not be worth it.
    policy = gemmdb.Policy(near=False, live_calls=10**9, live_s=0.0 if wait is None else 59.0)
    gemmdb.inductor.enable(on_miss=None if device == "cuda" else "live", policy=policy)
    found: list[dict[str, Any]] = []
    with torch.no_grad(), inductor_config.patch(freezing=device == "cpu"):
        # The first compile pays what every program pays once.
        torch.compile(lambda t: t + 1)(torch.ones(8, device=device))
        for model, inputs in live_model.graphs(device):
            gemmdb.inductor.reset_stats()
            start = time.perf_counter()
            torch.compile(model, dynamic=False)(inputs)
            seconds = time.perf_counter() - start
            stats = gemmdb.inductor.stats()
            wanted = ("problem", "rung", "config", "note", "speedup_vs_aten", "evidence")
            found.append(
                {
                    "seconds": round(seconds, 3),
                    "rungs": stats["rungs"],
                    "benchmarked": stats["benchmarked"],
                    "errors": stats["errors"],
                    "products": [{name: one[name] for name in wanted} for one in stats["products"]],
                }
            )
    return {"torch": torch.__version__, "graphs": found}


def in_process(device: str, home: Path, caches: str, wait: float | None) -> dict[str, Any]:
    """The JSON that a fresh process prints last. `home`: the folder of its table. `caches`: the name of Inductor's."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GEMMDB_")}
    environ |= {
        "XDG_DATA_HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "TRITON_CACHE_DIR": str(home / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(home / caches),
    }
    start = time.perf_counter()
    measured = command("benchmarks.torch", "live", "--child", device=device, wait=wait)
    done = subprocess.run(measured, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**found, "process_s": round(time.perf_counter() - start, 1)}


def shares(table: Path, served: dict[str, str], minutes: float) -> list[dict[str, Any]]:
    """The results of the generator for the problems of a table, and of what was served."""
    from contextlib import closing

    from gemmdb.generators.build.build import BuildRequest, build
    from gemmdb.generators.files.merge import merge
    from gemmdb.generators.measure import backends
    from gemmdb.kernels.config import Config
    from gemmdb.key.problem import Problem
    from gemmdb.table.reader import Table

    listed, searched, both = (table.with_name(name) for name in ("problems.jsonl", "search.db", "both.db"))
    write_shapes(listed, map(Problem.parse, served))
    backend = backends.backend_for(backends.device_for("native"))
    build(BuildRequest(shapes=str(listed), effort="quick", out=searched, minutes=minutes), backend=backend)
    merge([table, searched], both)
    found = []
    with closing(Table.open(both)) as opened:
        for text, config in served.items():
            pooled = [one for one in opened.pooled(Problem.parse(text), backend.device) if one.servable]
            mine = next((one.ratio for one in pooled if one.config == Config.parse(config)), None)
            best = min(pooled, key=lambda one: one.ratio, default=None)
            if mine is not None and best is not None:
                row = {"problem": text, "served": config, "ratio": mine, "best": best.config.text}
                found.append({**row, "best_ratio": best.ratio, "share": best.ratio / mine, "configs": len(pooled)})
    return found


def summary(first: dict[str, Any], second: dict[str, Any], compared: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures."""
    ordered = sorted(one["share"] for one in compared)
    tuning: list[dict[str, Any]] = [
        next((one["evidence"]["tuning"] for one in graph["products"] if "tuning" in one["evidence"]), {})
        for graph in first["graphs"]
    ]
    device_s = [one["device_s"] for one in tuning if one.get("device_s") is not None]
    problems = sum(one.get("problems", 0) for one in tuning)
    return {
        "tuning_s": [one.get("seconds") for one in tuning],
        "spent_s": [one.get("spent") for one in tuning],
        "first_call_s": [graph["seconds"] for graph in first["graphs"]],
        "first_call_s_second_process": [graph["seconds"] for graph in second["graphs"]],
        "device_s_per_problem": sum(device_s) / problems if device_s and problems else None,
        "rungs": [graph["rungs"] for graph in first["graphs"]],
        "rungs_second_process": [graph["rungs"] for graph in second["graphs"]],
        "share": {
            "mean": math.exp(sum(map(math.log, ordered)) / len(ordered)), "worst": ordered[0],
        } if ordered else None,
    }  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="FILE", help="the result")
    what.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where to compile; default: cuda")
    parser.add_argument("--wait", type=float, metavar="S", help="seconds that each product may take; default: 3 and 1")
    parser.add_argument("--minutes", type=float, default=1.5, help="time limit of the search")


def main(options: argparse.Namespace) -> None:
    """Run both processes and the search; write and print the result."""
    if options.child:
        print(json.dumps(child(options.device, options.wait)))
        return
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        first = in_process(options.device, home, "first", options.wait)
        second = in_process(options.device, home, "second", options.wait)
        products = [product for graph in first["graphs"] for product in graph["products"]]
        served = {one["problem"]: one["config"] for one in products if one["rung"] == "live"}
        compared = shares(home / "gemmdb" / "user.db", served, options.minutes) if served else []
    document = {
        "machine": platform.processor() or platform.machine(), "device": options.device,
        **summary(first, second, compared), "first": first, "second": second, "compared": compared,
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(
        json.dumps({name: document[name] for name in document if name not in ("first", "second", "compared")}, indent=1)
    )
