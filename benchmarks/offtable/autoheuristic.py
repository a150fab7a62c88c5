"""Do the modelled picks for an A100 agree with PyTorch's own heuristics for it? Runs on the CPU, in a minute.

    python -m benchmarks.offtable autoheuristic --out benchmarks/results/offtable

PyTorch has decision trees that were learned on an A100: for int8-weight GEMMs (`mixed_mm`, unused since that op was
removed) and for the configs worth trying of mm. This tool imports them from the installed torch and compares them with
the cost model over a grid of shapes. It adds the comparison with PyTorch's former rules for weight-only GEMMs (see
`model`). Nothing is measured on either side: this is the agreement of heuristics, and what the *model* thinks of their
differences.

- `fallback`: the library's kernel; for the model, if it expects less than the least gain that is served.
- `same_tile`, `same_rows`, `same_depth`: rows, columns and depth of both tiles agree; only rows; only depth. They count
  shapes for which both choose a kernel.
- `loss`: the model's time of their choice over the model's time of its own choice; it cannot be below 1.
- For mm, the tree ranks what Inductor then benchmarks: `ten` takes the best of its first ten by the model.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.offtable.model import against_rules
from gemmdb.cost.candidates import runs_on
from gemmdb.cost.machine import machine
from gemmdb.cost.model import FITTED
from gemmdb.cost.work import Setting, tile_of
from gemmdb.devices import registry
from gemmdb.generators.modelled.space import rank, setting_of
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.settings import Policy

SKU = "NVIDIA A100-SXM4-80GB"
TREES = {"mixed_mm": ("_MixedMMA100", "MixedMMA100"), "mm": ("_MMRankingA100", "MMRankingA100")}
ROWS = {"mixed_mm": (1, 4, 8, 16, 24, 32, 48, 64, 96, 128), "mm": (16, 64, 128, 256, 512, 1024, 2048, 4096)}
"""M by op: the range in which PyTorch used the trees, as far as their preconditions tell."""
COLUMNS, DEPTHS = (1024, 2048, 4096, 8192, 14336, 28672), (1024, 2048, 4096, 8192, 14336)
TEN = 10
FALLBACK = "fallback"
_CHOICE = re.compile(r"type=triton_BLOCK-M=(\d+)_BLOCK-K=(\d+)_BLOCK-N=(\d+)_numstages=(\d+)_numwarps=(\d+)")


def ranked(op: str, problem: Problem) -> list[Config]:
    """The configs that the tree of an op names for a problem, best first, ATen for the library's kernel; empty if it
    names none."""
    import torch

    utils = importlib.import_module("torch._inductor.autoheuristic.autoheuristic_utils")
    module, name = TREES[op]
    tree = getattr(importlib.import_module(f"torch._inductor.autoheuristic.artifacts.{module}"), name)()
    m, n, k = problem.m, problem.n, problem.k
    context = utils.AHContext()
    for feature, size in (("m", m), ("k", k), ("n", n)):
        context.add_feature(feature, size)
    context.add_feature("mat1_dtype", torch.float16, is_categorical=True)
    context.add_feature("mat2_dtype", torch.int8 if op == "mixed_mm" else torch.float16, is_categorical=True)
    utils.context_add_strides(context, "mat1", (k, 1))
    utils.context_add_strides(context, "mat2", (1, k))
    context.add_feature("mat1_iscontig", True, is_categorical=True)
    context.add_feature("mat2_iscontig", False, is_categorical=True)
    if op == "mm":
        utils.context_add_using_tf32(context, torch.float16)
    context.apply_operations(utils.mixed_mm_operations() if op == "mixed_mm" else utils.mm_operations())
    return [config for choice in tree.get_decisions_ranked(context) or () if (config := _config(choice)) is not None]


def _config(choice: str) -> Config | None:
    if choice.startswith("extern"):
        return ATEN
    found = _CHOICE.fullmatch(choice)
    if found is None:
        return None
    m, k, n, stages, warps = map(int, found.groups())
    return Config.of(
        "triton", "tile", block_m=m, block_n=n, block_k=k, group_m=8, split_k=1, reduce="none", swap=0,
        load="pointer", dequant="cast", warps=warps, stages=stages,
    )  # fmt: skip


def compared(op: str) -> list[dict[str, Any]]:
    """One row per shape of the grid."""
    device = registry.find(SKU)
    if device is None:
        raise AssertionError("the registry knows the A100")
    found = []
    for m, n, k in ((m, n, k) for m in ROWS[op] for n in COLUMNS for k in DEPTHS):
        fusion = "scale" if op == "mixed_mm" else "none"
        problem = Problem.gemm(op, m=m, n=n, k=k, dtype="fp16", layout="nt", fusion=fusion)
        theirs, setting = ranked(op, problem), setting_of(problem, device)
        pick, aten_us = rank(problem, device)[0], FITTED.predict_aten(setting)
        fallback = aten_us / pick.us - 1 < Policy().min_gain
        own_us = aten_us if fallback else pick.us
        row: dict[str, Any] = {"op": op, "m": m, "n": n, "k": k, "says": bool(theirs)}
        row |= {"pick": FALLBACK if fallback else pick.config.text, "us": round(own_us, 2)}
        if theirs:
            times = [_us(config, setting, aten_us) for config in theirs[:TEN]]
            tile = tile_of(theirs[0])
            row |= {
                "theirs": FALLBACK if tile is None else theirs[0].text, "their_fallback": tile is None,
                "fallback": fallback, "loss": times[0] / min(own_us, times[0]), "ten": min(times) / min(own_us, *times),
                "among_ten": any(_same(one, pick.config) for one in theirs[:TEN]),
            }  # fmt: skip
            if tile is not None and not fallback:
                mine = pick.tile
                row |= {
                    "same_tile": (tile.m, tile.n, tile.k) == (mine.m, mine.n, mine.k), "same_rows": tile.m == mine.m,
                    "same_depth": tile.k == mine.k,
                }  # fmt: skip
        found.append(row)
    return found


def _us(config: Config, setting: Setting, aten_us: float) -> float:
    tile = tile_of(config)
    if tile is None:
        return aten_us
    return FITTED.predict(setting, tile) if runs_on(tile, setting.machine) else math.inf


def _same(one: Config, other: Config) -> bool:
    a, b = tile_of(one), tile_of(other)
    return a is not None and b is not None and (a.m, a.n, a.k) == (b.m, b.n, b.k)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of one op."""
    said = [row for row in rows if row["says"]]
    tiles = [row for row in said if "same_tile" in row]
    fits = [row for row in said if math.isfinite(row["loss"])]
    return {
        "shapes": len(rows), "the_tree_says_nothing": len(rows) - len(said),
        "agree_on_fallback_or_not": _share(row["fallback"] == row["their_fallback"] for row in said),
        "their_fallback": _share(row["their_fallback"] for row in said),
        "our_fallback": _share(row["fallback"] for row in said),
        "both_choose_a_kernel": len(tiles),
        **{name: _share(row[name] for row in tiles) for name in ("same_tile", "same_rows", "same_depth")},
        "our_tile_among_their_ten": _share(row["among_ten"] for row in tiles),
        "loss_of_their_first": _spread([row["loss"] for row in fits]),
        "loss_of_their_ten": _spread([row["ten"] for row in said if math.isfinite(row["ten"])]),
        "does_not_fit": len(said) - len(fits),
    }  # fmt: skip


def _share(values: Iterable[bool]) -> float:
    found = list(values)
    return round(sum(found) / len(found), 3) if found else 0.0


def _spread(losses: Sequence[float]) -> dict[str, float]:
    ordered = sorted(losses)
    mean = math.exp(sum(map(math.log, ordered)) / len(ordered))
    return {"mean": round(mean, 3), "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 3)}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, required=True, help="the folder for the result")


def main(options: argparse.Namespace) -> None:
    """Ask both, print the summary, and write it with the raw answers."""
    import torch

    device = registry.find(SKU)
    if device is None or machine(device) is None:
        raise AssertionError("the model knows the A100")
    rows = {op: compared(op) for op in TREES}
    rules = {name: value for name, value in against_rules().items() if name != "grid"}
    document = {
        "what": "agreement of heuristics; nothing is measured, and every time is the cost model's",
        "torch": torch.__version__, "device": SKU,
        "trees": {op: summary(found) for op, found in rows.items()}, "rules": rules,
    }  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "autoheuristic.json").write_text(json.dumps(document, indent=1) + "\n")
    with gzip.GzipFile(options.out / "autoheuristic-answers.jsonl.gz", "wb", mtime=0) as file:
        file.write("".join(json.dumps(row) + "\n" for found in rows.values() for row in found).encode())
    print(json.dumps(document, indent=1))
