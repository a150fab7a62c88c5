"""Decode and prefill of a Llama-3-8B-shaped model: default mode, max-autotune and gemmdb, in turn in one process.

    python -m benchmarks.torch models --out FILE.jsonl [--rows 1,4,16,64] [--prefill 2048] [--layers 32]
        [--context 1024] [--weights bf16,int8,int8-before] [--modes default,gemmdb,max-autotune] [--trace]
        [--minutes M]

A step of each variant is captured in one CUDA graph, so no launch is waited for, and the graphs are replayed in turn.
Layers are compiled one by one and share their code, so each variant compiles one layer and the head. Max-autotune and
default mode have the int8 GEMM in two spellings; the faster one is their result. gemmdb answers from the shipped
table (or GEMMDB_TABLES) and tunes nothing; answers that nobody has measured are timed beside ATen first. A line says
which rung answered each GEMM. Appends one JSON line per number of rows.

The limit of a decode step is the time in which its weights, scales and cache are read once at `--bandwidth`. `--trace`
adds, by the profiler, how long each kernel takes and how long the GPU is idle between kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import software, without_root
from gemmdb.table.stats import interval

PEERS = ("default", "max-autotune", "gemmdb-invariant")
KINDS = {"bf16": ("bf16",), "int8": ("int8", "int8-before")}
"""The spellings of the GEMM that each kind of weights has."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the result; lines are appended")
    parser.add_argument("--rows", default="1,4,16,64", help="numbers of sequences that are decoded at once")
    parser.add_argument("--prefill", type=int, default=2048, help="tokens of a prefill; 0 for none")
    parser.add_argument("--layers", type=int, default=32, help="layers of the model")
    parser.add_argument("--context", type=int, default=1024, help="tokens in the cache of a decode step")
    parser.add_argument("--seconds", type=float, default=10, help="of timing, per number of rows")
    parser.add_argument(
        "--weights", default=",".join(name for names in KINDS.values() for name in names), help="spellings to compile"
    )
    parser.add_argument(
        "--modes", default="default,gemmdb,max-autotune",
        help="of default, gemmdb, max-autotune, and gemmdb-invariant, with batch invariance",
    )  # fmt: skip
    parser.add_argument(
        "--bandwidth", type=float, default=4.3e12, help="bytes per second of the limit; default: an H200's copy"
    )
    parser.add_argument("--trace", action="store_true", help="also say where the time of each step goes")
    parser.add_argument("--minutes", type=float, default=60, help="begin no further variant after that time")


def main(options: argparse.Namespace) -> None:
    """Measure decode for each number of rows, then prefill."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp(prefix="inductor-"))
    import torch

    from benchmarks.torch import llama, steps

    shape = llama.Shape(layers=options.layers)
    cases = [(int(rows), 1, options.context) for rows in options.rows.split(",") if rows]
    cases += [(1, options.prefill, options.prefill)] if options.prefill else []
    with torch.no_grad():
        for rows, tokens, context in cases:
            found = steps.measure(shape, llama.Run(rows, context, "bf16"), tokens, options)
            found["gains"] = gains(found.pop("taken"))
            found |= {"context": context, "summary": summary(found), **software()}
            with options.out.open("a") as file:
                file.write(without_root(found) + "\n")
            print(rows, tokens, json.dumps(found["summary"]), flush=True)
            torch.cuda.empty_cache()


def gains(taken: dict[str, list[float]]) -> dict[str, list[float]]:
    """The time of a peer's step over that of gemmdb's, each in the faster of its spellings: the median over the rounds,
    in which one follows the other, between the ends of its 95% interval."""
    found = {}
    for kind, spellings in KINDS.items():
        ours, *others = (_fastest(taken, [f"{one}/{mode}" for one in spellings]) for mode in ("gemmdb", *PEERS))
        for peer, theirs in zip(PEERS, others, strict=True):
            if len(ours) == len(theirs) > 0:
                ratios = sorted(other / one for one, other in zip(ours, theirs, strict=True))
                low, high = interval(len(ratios))
                found[f"{kind} over {peer}"] = [ratios[low], statistics.median(ratios), ratios[high]]
    return found


def _fastest(taken: dict[str, list[float]], names: Sequence[str]) -> list[float]:
    known = [taken[name] for name in names if name in taken]
    return min(known, key=statistics.median, default=[])


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Tokens per second, the share of the limit that the memory sets for a decode step, the share of the time in which
    no kernel ran, and gemmdb's gains."""
    count = found["rows"] * found["tokens"]
    tokens = {name: round(1e3 * count / quartiles[1], 1) for name, quartiles in found["ms"].items()}
    gains = {name: [round(end, 3) for end in ends] for name, ends in found["gains"].items()}
    if found["tokens"] > 1:  # The matrix unit limits a prefill.
        return {"tokens_per_s": tokens, **gains}
    limits = {name: round(1e3 * count / ms, 1) for name, ms in found["limit_ms"].items()}
    share = {name: round(value / limits[name.split("/")[0]], 3) for name, value in tokens.items()}
    idle = {name: round(one["idle_us"] / one["span_us"], 3) for name, one in found.get("trace", {}).items()}
    return {"tokens_per_s": tokens, "limit": limits, "of_limit": share, **({"idle": idle} if idle else {}), **gains}
