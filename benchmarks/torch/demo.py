"""The main job from end to end: record a program's GEMMs, build a table for them, compile against it, compare.

    python -m benchmarks.torch demo               all steps (what `make demo` runs); a second run measures nothing new
    python -m benchmarks.torch demo --compare     only the last step, with the table that is there

Writes `.demo/workload.jsonl`, `.demo/table.db` and `.demo/result.json`. `benchmarks/results/demo.json` is a copy of the
last from an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from benchmarks.common import ROOT
from gemmdb.devices.detect import cuda

if TYPE_CHECKING:
    from benchmarks.torch.demo_model import Case

DEMO = ROOT / ".demo"
WORKLOAD, TABLE, RESULT = DEMO / "workload.jsonl", DEMO / "table.db", DEMO / "result.json"
ROUNDS = 60


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--compare", action="store_true", help="only compare, with the table that is there")


def main(options: argparse.Namespace) -> None:
    """Record, build, compare."""
    DEMO.mkdir(exist_ok=True)
    if not options.compare:
        record_and_build()
    result = compare()
    RESULT.write_text(json.dumps(result, indent=1))
    show(result)


def record_and_build() -> None:
    """The two offline steps, by the commands that a user would type. A second run does not record again."""
    if not WORKLOAD.exists():
        gemmdb("record", "--out", str(WORKLOAD), "--", sys.executable, "-m", "benchmarks.torch.demo_model")
    # The model runs on the CPU, also where `native` would be a GPU.
    arch = "native" if cuda() is None else "cpu"
    # --all: the program is compiled strictly, so products for which ATen is the only kernel need a row too.
    gemmdb("build", "--arch", arch, "--shapes", str(WORKLOAD), "--effort", "quick", "--all", "--out", str(TABLE))
    gemmdb("coverage", str(WORKLOAD), tables=str(TABLE))


def gemmdb(*arguments: str, tables: str = "") -> None:
    """Run `gemmdb ARGUMENTS`. If it fails, the demo ends with its exit code."""
    print(f"\n$ gemmdb {' '.join(arguments)}", flush=True)
    environ = {**os.environ, "GEMMDB_TABLES": tables}
    done = subprocess.run([sys.executable, "-m", "gemmdb", *arguments], env=environ, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)


def compare() -> dict[str, Any]:
    """Compile every module in three modes in this process, each with an empty kernel cache, and run them in turn."""
    import torch
    import torch._inductor.config

    import gemmdb.devices.detect
    import gemmdb.inductor
    from benchmarks.torch.demo_model import cases

    torch._inductor.config.freezing = True
    torch._inductor.config.autotune_num_choices_displayed = 0
    warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
    os.environ["GEMMDB_TABLES"] = str(TABLE)
    modes: dict[str, Callable[[Any], Any]] = {
        "default": torch.compile,
        "max-autotune": lambda module: torch.compile(module, mode="max-autotune"),
        "gemmdb": lambda module: torch.compile(module, backend="gemmdb", options={"gemmdb.on_miss": "error"}),
    }
    with torch.no_grad():
        warm_up()
        compiled, compile_s = {}, {}
        for mode, compile_as in modes.items():
            compiled[mode], compile_s[mode] = compile_all(compile_as)
        stats = gemmdb.inductor.stats()
        runs = {case.name: run_in_turn(case, compiled) for case in cases()}
        errors = {case.name: max_error(case, compiled["gemmdb"][case.name]) for case in cases()}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gemmdb": gemmdb.__version__,
        "device": gemmdb.devices.detect.cpu(torch.get_num_threads()).text,
        "threads": torch.get_num_threads(),
        "compile_s": compile_s,
        "run_us": runs,
        "max_error": errors,
        "stats": stats,
    }


def warm_up() -> None:
    """Compile once, so that no mode pays what the first compile of a process costs (imports, a precompiled header)."""
    import torch

    with fresh_cache():
        torch.compile(torch.nn.Linear(64, 64).eval())(torch.randn(2, 64))


def fresh_cache() -> Any:
    """A context with an empty kernel cache."""
    from torch._inductor.utils import fresh_cache

    return fresh_cache()


def compile_all(compile_as: Callable[[Any], Any]) -> tuple[dict[str, Any], float]:
    """Every module compiled in one mode, and the seconds to the first results, from an empty kernel cache."""
    import torch

    from benchmarks.torch.demo_model import cases

    torch._dynamo.reset()
    compiled = {case.name: (compile_as(case.module), case.x) for case in cases()}
    # max-autotune prints every choice that it times to stderr.
    with fresh_cache(), contextlib.redirect_stderr(io.StringIO()):
        start = time.perf_counter()
        for function, x in compiled.values():
            function(x)
        seconds = time.perf_counter() - start
    return {name: function for name, (function, _) in compiled.items()}, seconds


def run_in_turn(case: Case, compiled: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Median microseconds of a call per mode. The modes take turns, so drift and other load affect all of them."""
    times: dict[str, list[float]] = {mode: [] for mode in compiled}
    for round_ in range(ROUNDS + 5):
        for mode, functions in compiled.items():
            start = time.perf_counter_ns()
            functions[case.name](case.x)
            if round_ >= 5:
                times[mode].append((time.perf_counter_ns() - start) / 1e3)
    return {mode: statistics.median(values) for mode, values in times.items()}


def max_error(case: Case, function: Any) -> float:
    """The largest error against the float64 (or integer) reference, relative to its largest value."""
    reference = case.reference()
    return float((function(case.x).double() - reference).abs().max() / reference.abs().max())


def summary(problem: str) -> str:
    """A problem in a few words: `addmm 4x1024x4096 bf16 +pointwise`."""
    from gemmdb import Problem

    p = Problem.parse(problem)
    dtypes = p.a.dtype if p.a.dtype == p.b.dtype else f"{p.a.dtype} x {p.b.dtype}"
    return f"{p.op} {p.m}x{p.n}x{p.k} {dtypes}" + ("" if p.fusion == "none" else f" +{p.fusion}")


def show(result: dict[str, Any]) -> None:
    """Print the result as a short table."""
    stats = result["stats"]
    print(f"\n{'GEMM':<44} {'rung':<6} {'kernel':<18} {'time':>9} {'default':>9} {'gain':>6}")
    for row in stats["products"]:
        time_us, gain = row["expected_us"], row["speedup_vs_aten"]
        print(
            f"{summary(row['problem']):<44} {row['rung']:<6} {row['backend'] + ':' + row['kernel']:<18}"
            f" {time_us:>7.1f}us {time_us * gain:>7.1f}us {gain:>5.2f}x"
        )
    print(f"\nkernels benchmarked at compile time with gemmdb: {stats['benchmarked']}")
    print(f"\n{'':<22}" + "".join(f"{mode:>14}" for mode in result["compile_s"]))
    print(f"{'compile, seconds':<22}" + "".join(f"{value:>14.1f}" for value in result["compile_s"].values()))
    for name, runs in result["run_us"].items():
        print(f"{'run ' + name + ', us':<22}" + "".join(f"{value:>14.0f}" for value in runs.values()))
    worst = max(result["max_error"].items(), key=lambda item: item[1])
    print(f"\nmaximum error against eager float64, relative: {worst[1]:.1e} ({worst[0]})")
