"""Compile time of a Llama-3-8B-shaped model in default mode, with gemmdb and with max-autotune, in fresh processes.

    python -m benchmarks.torch compile --out FILE.json [--layers 4] [--rows 16] [--repeats 2] [--gpus 1] [--each 1]
        [--cold] [--skip max-autotune]

Every measurement is a process of its own: `cold` starts with empty caches (Inductor's, Triton's), `warm` is the same
program again with the caches that the cold one left. The time is that of the first call, in seconds. The kernels that
gemmdb chose are compared between all processes. `overhead` is what `import gemmdb` with `enable()` adds to a program
that compiles nothing, and to a compile without GEMMs. `--gpus` and `--each` run repeats side by side, on several GPUs
and on each of them; each repeat gets its share of the processors. FILE is written anew after every repeat, so nothing
is lost.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.command import command
from benchmarks.common import software, visible_gpus
from gemmdb.table.stats import interval

MODES = ("default", "gemmdb", "max-autotune")
KINDS = ("bf16", "int8")
RUNS = 5
OVERHEAD = """
import json, sys, time
import torch
start = time.perf_counter()
import gemmdb.inductor
gemmdb.inductor.enable()
enabled = time.perf_counter() - start
loaded = "torch._inductor" in sys.modules
import torch._functorch.config
import torch._inductor.compile_fx
import torch._inductor.config
torch._inductor.config.fx_graph_cache = torch._functorch.config.enable_autograd_cache = False
device = "cuda" if torch.cuda.is_available() else "cpu"

def compiled(size):
    torch._dynamo.reset()
    run = torch.compile(lambda x: torch.sin(x) * size + x.cos())
    x = torch.ones(64, device=device)
    start = time.perf_counter()
    run(x)
    return time.perf_counter() - start

compiled(0)
more = []
for size in range(1, 33):
    seconds = {}
    for with_it in (True, False) if size % 2 else (False, True):
        gemmdb.inductor.enable() if with_it else gemmdb.inductor.disable()
        seconds[with_it] = compiled(size)
    more.append(1e3 * (seconds[True] - seconds[False]))
print(json.dumps({"enable_ms": 1e3 * enabled, "inductor_imported": loaded, "more_ms": more}))
"""


def child(mode: str, kind: str, layers: int, rows: int) -> dict[str, Any]:
    """One measurement, in this process."""
    import torch

    from benchmarks.torch import llama

    shape = llama.Shape(layers=layers)
    made_for = llama.Run(rows, 1024, kind)
    model = llama.Decoder(shape, made_for).eval()
    inputs = llama.inputs(shape, made_for, 1)
    how: dict[str, Any] = {"mode": "max-autotune-no-cudagraphs"} if mode == "max-autotune" else {}
    if mode == "gemmdb":
        how = {"backend": "gemmdb", "options": {"gemmdb.on_miss": "aten"}}
    run = torch.compile(model, **how)
    import torch._inductor.compile_fx

    with torch.no_grad():
        model(*inputs)
        torch.cuda.synchronize()
        start = time.perf_counter()
        run(*inputs)
        torch.cuda.synchronize()
        found: dict[str, Any] = {"seconds": time.perf_counter() - start}
    if mode == "gemmdb":
        import gemmdb.inductor

        stats = gemmdb.inductor.stats()
        found["benchmarked"] = stats["benchmarked"]
        found["kernels"] = sorted({(p["problem"], p["config"]) for p in stats["products"]})
    return found


def in_process(
    command: Sequence[str], caches: Path, gpu: str, more: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """The JSON object that a fresh process on one GPU prints last. `more`: additional environment variables."""
    environ = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": gpu,
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "t"),
        **more,
    }
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"failure": done.stderr[-2000:]}
    reply: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return reply


def compiles(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Cold and warm compiles of every kind and mode, in the order in which the repeats end. Each runs on a free GPU."""
    free: queue.Queue[str] = queue.Queue()
    places = visible_gpus()[: options.gpus] * options.each
    for gpu in places:
        free.put(gpu)

    def on_a_gpu(number: int) -> list[dict[str, Any]]:
        gpu = free.get()
        try:
            return list(repeat(options, number, gpu))
        finally:
            free.put(gpu)

    with ThreadPoolExecutor(len(places)) as pool:
        for done in as_completed([pool.submit(on_a_gpu, number) for number in range(options.repeats)]):
            yield from done.result()


def repeat(options: argparse.Namespace, number: int, gpu: str) -> Iterator[dict[str, Any]]:
    """All kinds and modes in turn; max-autotune in the first repeat alone."""
    for kind in KINDS:
        for mode in MODES:
            if mode in options.skip or (mode == "max-autotune" and number):
                continue
            with tempfile.TemporaryDirectory() as caches:
                for state in ("cold",) if options.cold else ("cold", "warm"):
                    measured = command(
                        "benchmarks.torch", "compile", "--child", mode, kind, layers=options.layers, rows=options.rows
                    )
                    result = in_process(measured, Path(caches), gpu)
                    found = {"repeat": number, "kind": kind, "mode": mode, "state": state, **result}
                    print(json.dumps({**found, "kernels": len(result.get("kernels", ()))}), flush=True)
                    yield found


def overhead() -> dict[str, Any]:
    """Milliseconds that `import gemmdb.inductor` and `enable()` take in a fresh process, median of RUNS; and the
    additional time of a compile without GEMMs, the median of all pairs between the ends of its 95% interval. A pair is
    two compiles of one process, in either order."""
    with tempfile.TemporaryDirectory() as caches:
        program, gpu = [sys.executable, "-c", OVERHEAD], visible_gpus()[0]
        replies = [in_process(program, Path(caches), gpu) for _ in range(RUNS + 1)][1:]
    failures = [reply for reply in replies if "failure" in reply]
    if failures:
        return failures[0]
    more = sorted(ms for reply in replies for ms in reply["more_ms"])
    low, high = interval(len(more))
    return {
        "enable_ms": statistics.median(reply["enable_ms"] for reply in replies),
        "compile_without_gemms_ms": [more[low], statistics.median(more), more[high]],
        "pairs": len(more),
        "inductor_imported_by_enable": any(reply["inductor_imported"] for reply in replies),
    }


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians by kind, state and mode, gemmdb's ratio to the others, and the number of different choices of kernels."""
    lines: dict[str, Any] = {}
    for kind in KINDS:
        for state in ("cold", "warm"):
            medians = {}
            for mode in MODES:
                times = [f["seconds"] for f in found
                         if (f["kind"], f["state"], f["mode"]) == (kind, state, mode) and "seconds" in f]  # fmt: skip
                if times:
                    medians[mode] = round(statistics.median(times), 2)
            ratios = {f"gemmdb/{m}": round(medians["gemmdb"] / s, 3) for m, s in medians.items()
                      if m != "gemmdb" and "gemmdb" in medians}  # fmt: skip
            lines[f"{kind} {state}"] = {**medians, **ratios}
        chosen = [json.dumps(f["kernels"]) for f in found if f["kind"] == kind and "kernels" in f]
        lines[f"{kind} processes"] = {"number": len(chosen), "choices": len(set(chosen))}
    return lines


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="FILE", help="the result")
    what.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--layers", type=int, default=4, help="layers of the model")
    parser.add_argument("--rows", type=int, default=16, help="sequences that are decoded at once")
    parser.add_argument("--repeats", type=int, default=2, help="measurements of each kind of weights and mode")
    parser.add_argument("--gpus", type=int, default=1, help="number of GPUs that run repeats side by side")
    parser.add_argument("--each", type=int, default=1, help="number of repeats side by side on one GPU")
    parser.add_argument("--cold", action="store_true", help="leave out the programs that find filled caches")
    parser.add_argument("--skip", default="", help="a mode to leave out")


def main(options: argparse.Namespace) -> None:
    """Measure, write and print."""
    if options.child:
        mode, kind = options.child
        print(json.dumps(child(mode, kind, options.layers, options.rows)))
        return
    # Repeats side by side would otherwise start as many compilers each as there are processors.
    cores = (os.cpu_count() or 2) // (options.gpus * options.each)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(min(32, max(2, cores))))
    result: dict[str, Any] = {
        **software(), "layers": options.layers, "rows": options.rows, "cores": os.cpu_count(), "gpus": options.gpus,
        "each": options.each, "compiles": [],
    }  # fmt: skip
    for found in compiles(options):
        result["compiles"].append(found)
        result["summary"] = summary(result["compiles"])
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    result["overhead"] = overhead()
    print(json.dumps(result["overhead"]), flush=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["summary"], indent=1))
