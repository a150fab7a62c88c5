"""vLLM's experts with its default config, with the file that vLLM has, and with the file of `gemmdb vllm experts`.

    gemmdb vllm experts --experts 8 --top-k 2 --hidden 4096 --intermediate 7168 -o FOLDER
    python -m benchmarks.torch vllm-files FOLDER --experts 8 --top-k 2 --hidden 4096 --intermediate 7168 --out OUT.json

For each number of tokens, vLLM's kernel is timed with the three configs in turn, with cold caches. A line has the times
in microseconds and how many times as fast the file of gemmdb is. vLLM must be installed.

--every M also times all configs of the space that vLLM's own tuning searches, for one number of tokens and in random
order for at most --seconds, then the fastest eight in full, in turn with the file's: what an exhaustive search gains.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from time import monotonic
from typing import TYPE_CHECKING, Any

from benchmarks.common import software, without_root

if TYPE_CHECKING:
    from gemmdb.generators.vllm.bench import Bench
    from gemmdb.generators.vllm.layers import Experts
    from gemmdb.generators.vllm_files import Tile

SAMPLES, ESTIMATE, FINALISTS, CHUNK = 60, 3, 8, 16
SPACE: Mapping[str, Sequence[int]] = {
    "block_m": (16, 32, 64, 128, 256), "block_n": (32, 64, 128, 256), "block_k": (64, 128, 256),
    "group_m": (1, 16, 32, 64), "warps": (4, 8), "stages": (2, 3, 4, 5),
}  # fmt: skip
"""What vLLM's benchmark_moe.py searches on NVIDIA GPUs."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("folder", type=Path, help="the folder with the file of gemmdb vllm experts")
    for name in ("experts", "top-k", "hidden", "intermediate"):
        parser.add_argument(f"--{name}", type=int, required=True, help="as for gemmdb vllm experts")
    parser.add_argument("--fp8", action="store_true", help="as for gemmdb vllm experts")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the results as JSON")
    parser.add_argument("--tokens", metavar="M,...", help="numbers of tokens [default: those of the file]")
    parser.add_argument("--every", type=int, metavar="M", help="search all configs for M tokens instead")
    parser.add_argument("--seconds", type=float, default=90.0, help="the limit of --every")


def main(options: argparse.Namespace) -> None:
    """Time all numbers of tokens, or one exhaustively."""
    import torch

    from gemmdb.generators import vllm_files
    from gemmdb.generators.vllm import kernels, operands
    from gemmdb.generators.vllm.layers import Experts

    layer = Experts(options.experts, options.top_k, options.hidden, options.intermediate, options.fp8)
    device = torch.device("cuda")
    versions = kernels.versions(layer, device)
    ours = vllm_files.read(options.folder / layer.name(versions["device"]).text).tiles
    if options.tokens:
        ours = {m: ours[m] for m in map(int, options.tokens.split(","))}
    weights = [operands.weight(one, layer.fp8, device) for one in layer.weights]
    if options.every:
        bench = _bench(layer, weights, options.every)
        found = exhaustive(bench, layer, ours[options.every], options.seconds)
        print(json.dumps(found), flush=True)
    else:
        rows = list(lines(layer, weights, ours))
        found = {"rows": rows, "over_default": _gain(rows, "default"), "over_vllm": _gain(rows, "vllm")}
        print(f"over default {found['over_default']:.3f}x, over vLLM's file {found['over_vllm']:.3f}x", flush=True)
    options.out.write_text(without_root({**software(), **versions, "layer": layer.described, **found}) + "\n")


def lines(layer: Experts, weights: list[Any], ours: Mapping[int, Tile]) -> Iterator[dict[str, Any]]:
    """Yield the times of each number of tokens."""
    from gemmdb.generators.vllm import kernels

    for m in ours:
        bench = _bench(layer, weights, m)
        tiles = {"default": kernels.default(layer, m), "vllm": bench.current, "gemmdb": ours[m]}
        timed = {row.tile: row.times for row in bench.time(list(dict.fromkeys(tiles.values())), SAMPLES)}
        us = {way: one.median_us if (one := timed[tile]) else None for way, tile in tiles.items()}
        print(f"M={m}: " + ", ".join(f"{way} {took:.1f}" for way, took in us.items() if took), flush=True)
        yield {"m": m, "us": us, "config": ours[m].values}


def exhaustive(bench: Bench, layer: Experts, ours: Tile, seconds: float) -> dict[str, Any]:
    """Return how much faster the fastest config of the space is than ours."""
    from gemmdb.generators.vllm import search, space
    from gemmdb.generators.vllm_files import Tile

    every = [Tile(**dict(zip(SPACE, values, strict=True))) for values in product(*SPACE.values())]
    tiles = [tile for tile in every if space.legal(tile, layer, bench.shared_bytes)]
    random.Random(1).shuffle(tiles)
    until, rows = monotonic() + seconds, []
    for first in range(0, len(tiles), CHUNK):
        if monotonic() < until:
            rows += bench.time(tiles[first : first + CHUNK], ESTIMATE)
    finalists = dict.fromkeys([*search.fastest(rows)[:FINALISTS], ours])
    timed = {row.tile: row.times.median_us for row in bench.time(list(finalists), SAMPLES) if row.times}
    best = min(timed, key=timed.__getitem__)
    return {
        "m": bench.m, "space": len(tiles), "tried": len(rows), "best": best.values, "best_us": timed[best],
        "gemmdb": ours.values, "gemmdb_us": timed[ours], "behind": timed[ours] / timed[best],
    }  # fmt: skip


def _bench(layer: Experts, weights: list[Any], m: int) -> Bench:
    import torch

    from gemmdb.generators.vllm import kernels
    from gemmdb.generators.vllm.bench import Bench

    return Bench(kernels.kernel(layer, weights, m, torch.device("cuda")), m)


def _gain(rows: Sequence[Mapping[str, Any]], way: str) -> float:
    """The geometric mean of how many times as fast gemmdb's file is."""
    return geometric_mean(row["us"][way] / row["us"]["gemmdb"] for row in rows if all(row["us"].values()))
