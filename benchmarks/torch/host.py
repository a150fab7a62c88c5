"""Time what the host takes to launch each kind of GEMM without a CUDA graph, beside ATen.

    python -m benchmarks.torch host --out host.json [--kinds tile,padded] [--wrapper cpp] [--seconds 30]

Each kind is a config that is forced on chains of small GEMMs, compiled by torch.compile. The time of a GEMM is the
difference between a long and a short chain, so the guards and the call of the graph do not count. All chains run in
turn, and each round gives a sample. The lines have medians with 95% intervals: microseconds per GEMM, and how many more
than ATen takes for the same program. `gpu` is the GPU's time per GEMM; the host's time is right only if it is longer.
A kind whose config is not served, or that fails, is listed with the reason.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common import software
from gemmdb.errors import InputError
from gemmdb.table.measurement import one_line
from gemmdb.table.stats import span, turns

LEAST_ROUNDS = 9
"""Rounds are timed at least as often, whatever `--seconds` says."""
Samples = Mapping[str, Sequence[float]]
"""Microseconds per GEMM in each round, by kind."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, default=Path("host.json"), metavar="FILE", help="default: host.json")
    parser.add_argument("--kinds", metavar="NAMES", help="separated by commas; default: all")
    parser.add_argument(
        "--wrapper", choices=("python", "cpp"), default="python", help="Inductor's wrapper code; default: python"
    )
    parser.add_argument("--seconds", type=float, default=30, help="time of the rounds; default: 30")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")


def main(options: argparse.Namespace) -> None:
    """Compile all kinds, time them in turn, and write what was measured."""
    from benchmarks.torch import launches

    kinds = chosen(launches.kinds(options.device), options.kinds)
    chains, failed = launches.compiled(kinds, options.device, options.wrapper)
    for name, reason in failed.items():
        print(f"{name}: {reason}", flush=True)
    samples = timed(chains, options.seconds)
    rows = summary({name: kinds[name].against for name in chains}, samples)
    for row in rows:
        chain = chains[row["kind"]]
        row |= {"config": chain.config, "gpu_us": gpu_us(row["kind"], chain) if options.device == "cuda" else None}
        print(line(row), flush=True)
    document = {**software(), "wrapper": options.wrapper, "kinds": rows, "failed": failed, "samples": samples}
    options.out.write_text(json.dumps(document, indent=1))


def chosen(kinds: Mapping[str, Any], names: str | None) -> dict[str, Any]:
    """The kinds of these names with those that they compare with, in their order. Raises InputError for another
    name."""
    if names is None:
        return dict(kinds)
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in kinds:
            raise InputError(f"no kind {name!r}; the kinds are {', '.join(kinds)}")
    needed = {*wanted, *(kinds[name].against for name in wanted)}
    return {name: kind for name, kind in kinds.items() if name in needed}


def timed(chains: Mapping[str, Any], seconds: float) -> dict[str, list[float]]:
    """Microseconds per GEMM in each round, by name. Each round has the order of `turns`."""
    samples: dict[str, list[float]] = {name: [] for name in chains}
    names, until, rounds = list(chains), time.monotonic() + seconds, 0
    while names and (rounds < LEAST_ROUNDS or time.monotonic() < until):
        for name in turns(names, rounds):
            samples[name].append(chains[name].sample_us())
        rounds += 1
    return samples


def gpu_us(name: str, chain: Any) -> float | None:
    """Microseconds of the GPU per GEMM of a chain; None if no CUDA graph can capture it, after a line that says so."""
    try:
        return float(chain.gpu_us())
    except Exception as error:
        print(f"{name}: no time of the GPU: {one_line(f'{type(error).__name__}: {error}')}", flush=True)
        return None


def summary(against: Mapping[str, str | None], samples: Samples) -> list[dict[str, Any]]:
    """One row per kind, the quickest first: its microseconds per GEMM and how many more than the kind that it compares
    with takes, each as median and 95% interval. `against`: the names of those, None for ATen itself."""
    rows = []
    for name, times in samples.items():
        row: dict[str, Any] = {"kind": name, "us": asdict(span(times)), "against": against[name], "over": None}
        if (reference := samples.get(against[name] or "")) is not None:
            row["over"] = asdict(span([one - other for one, other in zip(times, reference, strict=True)]))
        rows.append(row)
    return sorted(rows, key=lambda row: float(row["us"]["us"]))


def line(row: Mapping[str, Any]) -> str:
    """A row as text."""
    us, over, gpu = row["us"], row["over"], row["gpu_us"]
    words = [f"{row['kind']:24} {us['us']:7.2f} us ({us['low']:.2f} to {us['high']:.2f})"]
    if over:
        words.append(f"{over['us']:+.2f} ({over['low']:+.2f} to {over['high']:+.2f}) over {row['against']}")
    if gpu is not None:
        words.append(f"gpu {gpu:.2f}")
    return "  ".join(words)
