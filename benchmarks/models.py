"""Decode and prefill of a Llama-3-8B-shaped model: default mode, max-autotune and gemmdb, side by side in one process.

    python benchmarks/models.py --out FILE.jsonl [--rows 1,4,16] [--prefill 2048] [--layers 32] [--context 1024]
        [--weights bf16,int8,int8-before] [--minutes M]

A step is captured in one CUDA graph per variant, so that no launch is waited for, and the graphs are replayed in turn.
Layers are compiled one by one; they share their code, so each variant compiles one layer and the head. Max-autotune and
default mode have the int8 product in two spellings, of which the faster one is their result. gemmdb answers from the
shipped table (or GEMMDB_TABLES), benchmarks nothing and is strict: every product must be on the table. Appends one JSON
line per number of rows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp(prefix="inductor-"))

import llama
import torch
from h200_results import anywhere

import gemmdb.inductor
from gemmdb.devices import detect
from gemmdb.generators.measure.stats import interval
from gemmdb.key.toolchain import installed

PEERS = ("default", "max-autotune")
HOPELESS = 20
KINDS = {"bf16": ("bf16",), "int8": ("int8", "int8-before")}
"""The spellings of the product that each kind of weights has."""
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "gemmdb": {"backend": "gemmdb", "options": {"gemmdb.on_miss": "error"}},
    "max-autotune": {"mode": "max-autotune-no-cudagraphs"},
}


@dataclass
class Step:
    """One variant, captured: replaying `graph` computes `logits`."""

    graph: torch.cuda.CUDAGraph
    logits: torch.Tensor
    facts: dict[str, Any]


def captured(model: llama.Decoder, mode: str, inputs: tuple[torch.Tensor, torch.Tensor]) -> Step:
    """Compile the model's layers in a mode and capture one step."""
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    blocks: list[Callable[..., Any]] = [torch.compile(block, **MODES[mode]) for block in model.blocks]
    head = torch.compile(model.head, **MODES[mode])

    def step() -> torch.Tensor:
        x, angles = inputs
        for block in blocks:
            x = block(x, angles)
        return torch.as_tensor(head(x))

    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    facts: dict[str, Any] = {"compile_s": time.perf_counter() - start}
    if mode == "gemmdb":
        stats = gemmdb.inductor.stats()
        facts |= {"benchmarked": stats["benchmarked"], "products": stats["products"], "errors": stats["errors"]}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = step()
    return Step(graph, logits, facts)


def in_turn(steps: dict[str, Step], seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each step, all of them replayed once per round, starting with another one each time. What takes
    HOPELESS times as long as the fastest has its first time alone: a prefill with `_weight_int8pack_mm` takes half a
    minute."""
    first = {name: replayed(step) for name, step in steps.items()}
    names = [name for name, ms in first.items() if ms <= HOPELESS * min(first.values())]
    times: dict[str, list[float]] = {name: [] for name in names}
    until, rounds = time.monotonic() + seconds, 0
    while rounds < 5 or (rounds < 200 and time.monotonic() < until):
        for turn in range(len(names)):
            name = names[(rounds + turn) % len(names)]
            times[name].append(replayed(steps[name]))
        rounds += 1
    return {name: times.get(name, [first[name]] * 2) for name in steps}


def replayed(step: Step) -> float:
    """Milliseconds of one replay."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    step.graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def measure(shape: llama.Shape, run: llama.Run, tokens: int, options: argparse.Namespace) -> dict[str, Any]:
    """Everything about one number of rows and tokens; a variant that fails says why and leaves the others alone."""
    began = time.monotonic()
    inputs = llama.inputs(shape, run.rows, tokens)
    steps: dict[str, Step] = {}
    found: dict[str, Any] = {"rows": run.rows, "tokens": tokens, "layers": shape.layers, "failures": {}}
    models: list[llama.Decoder] = []  # A captured graph reads weights that it does not own.
    for weights in options.weights.split(","):
        torch.manual_seed(0)
        model = llama.Decoder(shape, replace(run, weights=weights)).eval()
        models.append(model)
        for mode in MODES:
            name = f"{weights}/{mode}"
            if time.monotonic() - began > 60 * options.minutes:
                found["failures"][name] = "left out: out of time"
                continue
            try:
                steps[name] = captured(model, mode, inputs)
                print(name, {**steps[name].facts, "products": None}, flush=True)
            except Exception as error:
                found["failures"][name] = f"{type(error).__name__}: {error}"[:2000]
                print(name, found["failures"][name], flush=True)
    taken = in_turn(steps, options.seconds)
    found["ms"] = {name: statistics.quantiles(values, n=4) for name, values in taken.items()}
    found["gains"] = gains(taken)
    found["facts"] = {name: step.facts for name, step in steps.items()}
    found["difference"] = {name: _difference(steps, name) for name in steps}
    return found


def _difference(steps: dict[str, Step], name: str) -> float | None:
    """How far a variant's logits are from default mode's for the same weights, relative in the Euclidean norm."""
    reference = steps.get(f"{name.split('/')[0]}/default")
    if reference is None:
        return None
    expected = reference.logits.double()
    return float((steps[name].logits.double() - expected).norm() / expected.norm())


def gains(taken: dict[str, list[float]]) -> dict[str, list[float]]:
    """How many times as long as gemmdb's a peer's step takes, each in the faster of its spellings: the median over the
    rounds, in which one follows the other, between the ends of its 95% interval."""
    found = {}
    for kind, spellings in KINDS.items():
        ours, *theirs = (_fastest(taken, [f"{s}/{mode}" for s in spellings]) for mode in ("gemmdb", *PEERS))
        for peer, values in zip(PEERS, theirs, strict=True):
            if len(ours) == len(values) > 0:
                ratios = sorted(other / mine for mine, other in zip(ours, values, strict=True))
                low, high = interval(len(ratios))
                found[f"{kind} over {peer}"] = [ratios[low], statistics.median(ratios), ratios[high]]
    return found


def _fastest(taken: dict[str, list[float]], names: Sequence[str]) -> list[float]:
    known = [taken[name] for name in names if name in taken]
    return min(known, key=statistics.median, default=[])


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Tokens per second, and gemmdb's gains."""
    count = found["rows"] * found["tokens"]
    tokens = {name: round(1e3 * count / quartiles[1], 1) for name, quartiles in found["ms"].items()}
    return {"tokens_per_s": tokens, **{name: [round(end, 3) for end in ends] for name, ends in found["gains"].items()}}


def main() -> None:
    """Measure decode for each number of rows, then prefill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", default="1,4,16")
    parser.add_argument("--prefill", type=int, default=2048, help="tokens of a prefill; 0 for none")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=10, help="of timing, per number of rows")
    parser.add_argument("--weights", default=",".join(llama.SPELLINGS))
    parser.add_argument("--minutes", type=float, default=60, help="after that no further variant is begun")
    options = parser.parse_args()
    shape = llama.Shape(layers=options.layers)
    device, toolchain = detect.cuda(), installed("cuda")
    cases = [(int(rows), 1, options.context) for rows in options.rows.split(",") if rows]
    cases += [(1, options.prefill, options.prefill)] if options.prefill else []
    with torch.no_grad():
        for rows, tokens, context in cases:
            found = measure(shape, llama.Run(rows, context, "bf16"), tokens, options)
            found |= {"context": context, "summary": summary(found), "device": device and device.text,
                      "toolchain": toolchain and toolchain.text,
                      "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}  # fmt: skip
            with options.out.open("a") as file:
                file.write(anywhere(found) + "\n")
            print(rows, tokens, json.dumps(found["summary"]), flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
