"""What shipped machine code of our Triton kernels would save of a first compile of a Llama-3-8B-shaped model.

    python -m benchmarks.torch cubins --out FILE.json [--layers 4] [--rows 16] [--repeats 3]

Each compile is a process of its own with an empty cache of Inductor. `default`: default mode, with an empty cache of
Triton. `gemmdb`: the same with gemmdb, its answers from tables alone. `shipped`: as `gemmdb`, but Triton's cache has
the kernels that GEMMs became in an earlier compile (`triton_tem_*`), and no others: this is what machine code that
ships with gemmdb could save at most, since nothing is looked up, unpacked or checked. The three take turns.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.command import command
from benchmarks.common import software, visible_gpus
from benchmarks.torch.compile import KINDS, in_process

WAYS = ("default", "gemmdb", "shipped")
PRODUCTS = "triton_tem"
"""How Inductor's names of the kernels of GEMMs begin."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the result, written after each repeat")
    parser.add_argument("--layers", type=int, default=4, help="layers of the model; default: 4")
    parser.add_argument("--rows", type=int, default=16, help="sequences that are decoded at once; default: 16")
    parser.add_argument("--repeats", type=int, default=3, help="compiles of each way; default: 3")


def main(options: argparse.Namespace) -> None:
    """Measure, write and print."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for one in compiles(options, Path(folder)):
            found.append(one)
            print(json.dumps(one), flush=True)
            result = {**software(), "layers": options.layers, "rows": options.rows, "compiles": found}
            options.out.write_text(json.dumps({**result, "summary": summary(found)}, indent=1) + "\n")
    print(json.dumps(summary(found), indent=1))


def compiles(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """The compiles of both kinds of weights, one after the other."""
    for kind in KINDS:
        first = folder / kind
        for repeat in range(-1, options.repeats):  # The first one fills a cache of Triton, and pays for reading files.
            for way in WAYS if repeat >= 0 else WAYS[1:2]:
                caches = first if repeat < 0 else folder / f"{kind}-{repeat}-{way}"
                kept = keep_products(first / "t", caches / "t") if way == "shipped" else 0
                mode = "default" if way == "default" else "gemmdb"
                child = command(
                    "benchmarks.torch", "compile", "--child", mode, kind, layers=options.layers, rows=options.rows
                )
                reply = in_process(child, caches, visible_gpus()[0])
                reply.pop("kernels", None)
                if repeat >= 0 or "failure" in reply:
                    yield {"kind": kind, "way": way, "repeat": repeat, "kept": kept, **reply}
                if repeat >= 0:
                    shutil.rmtree(caches, ignore_errors=True)


def keep_products(made: Path, place: Path) -> int:
    """Copy the kernels of GEMMs from one cache of Triton to another. Returns how many there are."""
    kept = [folder for folder in made.iterdir() if any(folder.glob(f"{PRODUCTS}*"))] if made.exists() else []
    for folder in kept:
        shutil.copytree(folder, place / folder.name)
    return len(kept)


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of seconds by kind and way, and what shipped kernels save, as a share of gemmdb's compile."""
    lines: dict[str, Any] = {}
    for kind in KINDS:
        medians = {}
        for way in WAYS:
            times = [one["seconds"] for one in found if (one["kind"], one["way"]) == (kind, way) and "seconds" in one]
            if times:
                medians[way] = round(statistics.median(times), 2)
        lines[kind] = medians
        if {"gemmdb", "shipped"} <= set(medians):
            lines[kind]["saved"] = round(1 - medians["shipped"] / medians["gemmdb"], 3)
    return lines
