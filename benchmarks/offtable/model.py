"""How well does the cost model rank kernels of problems that it has not seen? Runs on the CPU, in minutes.

    python -m benchmarks.offtable model benchmarks/results/h200/2026-11-20b benchmarks/results/h200/2026-11-20c \\
        [--ops bmm scaled_mm] --out benchmarks/results/offtable

`--ops` names ops with trees of their own. Only these are fitted then, and the files are `model-own...`.

The (N, K) pairs of the rows are dealt into five folds. The model is fitted five times, each time without one fold, and
ranks what was measured on that fold. A share is the best measured time of a problem over the measured time of the
answer. `order` compares the model's first with the best config other than ATen, `served` with the best of all if ATen
is taken where the model expects no gain. `served_default` does so by the gain that the default policy asks for. `top4`
is the best of ATen and the model's first four, as live tuning would find it. All of it is repeated with trees that
reorder the model's first eight.

Then A100 picks are compared with PyTorch's former rules for weight-only GEMMs on the A100 (fp16 times int8). Nothing
is measured on that side, so this tells only how far the two agree, and what the *model* thinks of the difference.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.offtable.folds import FOLDS, fitted_without, fold_of
from gemmdb.cost.features import OPS, TREE_OPS
from gemmdb.cost.model import FITTED, Coefficients
from gemmdb.cost.trees import Corrected
from gemmdb.cost.work import tile_of
from gemmdb.devices import registry
from gemmdb.generators.fit import cost_model
from gemmdb.generators.fit.cost_model import Sample
from gemmdb.generators.fit.write import divided, rows
from gemmdb.generators.modelled.space import rank, setting_of
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.lookup.ranking import TREE_CANDIDATES
from gemmdb.settings import Policy

LIVE = 4
A100_TILES = ((16, (16, 64, 128)), (32, (32, 32, 128)), (64, (64, 32, 128)))
"""The rules for N and K of at least 4096: largest M, and BLOCK_M, BLOCK_N, BLOCK_K; always 4 warps and 5 stages."""
GRID_M, GRID_N, GRID_K = (1, 4, 8, 16, 24, 32, 48, 64), (4096, 8192, 14336, 28672), (4096, 8192, 14336)


@dataclass(frozen=True)
class Answer:
    """The model's answer to one held-out problem. Shares as above. `error`, `aten_error`: the logarithm of expected
    over measured time, of the model's first and of ATen. `expected`: the gain over ATen that the model expected of its
    first. `gained`: the measured gain."""

    op: str
    problem: str
    order: float
    order4: float
    served: float
    served_default: float
    top4: float
    aten: float
    error: float
    aten_error: float
    expected: float
    gained: float


def held_out(found: Sequence[Sample]) -> Iterator[tuple[Answer, Answer | None]]:
    """For every problem the answers of the model and of the model with trees, both fitted without its (N, K) pair."""
    for fold in range(FOLDS):
        with fitted_without(fold, found) as fitted:
            by_problem: dict[Problem, list[Sample]] = defaultdict(list)
            for sample in found:
                if fold_of(sample.problem) == fold:
                    by_problem[sample.problem].append(sample)
            for problem in sorted(by_problem, key=lambda problem: problem.text):
                alone = _answer(fitted, by_problem[problem], False)
                if alone is not None:
                    yield alone, _answer(fitted, by_problem[problem], True)


def _answer(fitted: Coefficients, measured: Sequence[Sample], trees: bool) -> Answer | None:
    problem, times = measured[0].problem, {sample.config: sample.us for sample in measured}
    setting = setting_of(problem, measured[0].device)
    tiles = {config: tile for config in times if (tile := tile_of(config)) is not None}
    expected = {config: fitted.predict(setting, tile) for config, tile in tiles.items()}
    ranked = sorted(expected, key=lambda config: (expected[config], config.text))
    if ATEN not in times or not ranked:
        return None
    aten_us = fitted.predict_aten(setting)
    if trees and (corrected := Corrected.of(setting)) is not None:
        expected |= {config: corrected.us(tiles[config]) for config in ranked[:TREE_CANDIDATES]}
        ranked[:TREE_CANDIDATES] = sorted(ranked[:TREE_CANDIDATES], key=lambda config: expected[config])
        aten_us = corrected.aten_us()
    first = ranked[0]
    first_us = expected[first]
    gain = aten_us / first_us - 1
    best, own = min(times.values()), min(times[config] for config in ranked)
    top = min(times[config] for config in ranked[:LIVE])
    return Answer(
        problem.op, problem.text, own / times[first], own / top,
        best / (times[first] if gain >= Policy().min_gain else times[ATEN]),
        best / (times[first] if gain >= Policy().model_gain else times[ATEN]),
        best / min(top, times[ATEN]), best / times[ATEN], math.log(first_us / times[first]),
        math.log(aten_us / times[ATEN]), gain, times[ATEN] / times[first] - 1,
    )  # fmt: skip


def summary(answers: Sequence[Answer]) -> dict[str, Any]:
    """By op and over all: geometric means and 5th percentiles of the shares, spread of the errors, and how often an
    answer of the default policy is a gain."""
    groups: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        groups[answer.op].append(answer)
        groups["all"].append(answer)
    return {op: _summary(group) for op, group in sorted(groups.items())}


def _summary(group: Sequence[Answer]) -> dict[str, Any]:
    found: dict[str, Any] = {"problems": len(group)}
    for name in ("order", "order4", "served", "served_default", "top4", "aten"):
        values = [getattr(answer, name) for answer in group]
        found[name] = {"mean": round(_mean(values), 3), "p5": round(_percentile(values, 0.05), 3)}
    for name in ("error", "aten_error"):
        values = [getattr(answer, name) for answer in group]
        found[name] = {"bias": round(sum(values) / len(values), 3), "deviation": round(_deviation(values), 3)}
    served = [answer for answer in group if answer.expected >= Policy().model_gain]
    found["clear"] = {"problems": len(served), "gained": sum(answer.gained > 0 for answer in served)}
    return found


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[int(share * (len(ordered) - 1))]


def _deviation(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))


def against_rules() -> dict[str, Any]:
    """A100, fp16 x int8: the model's pick and the rule's tile, over a grid. All times are the model's."""
    device = registry.find("NVIDIA A100-SXM4-80GB")
    if device is None:
        raise AssertionError("the registry knows the A100")
    found: list[dict[str, Any]] = []
    for m, n, k in ((m, n, k) for m in GRID_M for n in GRID_N for k in GRID_K):
        problem = Problem.gemm("mixed_mm", m=m, n=n, k=k, dtype="fp16", fusion="scale")
        block = next(tile for most, tile in A100_TILES if m <= most)
        rule = Config.of(
            "triton", "tile", block_m=block[0], block_n=block[1], block_k=block[2], group_m=8, split_k=1,
            reduce="none", swap=0, load="pointer", dequant="cast", warps=4, stages=5,
        )  # fmt: skip
        tile, setting = tile_of(rule), setting_of(problem, device)
        if tile is None:
            raise AssertionError("the model knows tiles")
        rule_us, pick = FITTED.predict(setting, tile), rank(problem, device)[0]
        found.append({
            "m": m, "n": n, "k": k, "rule": block, "rule_us": round(rule_us, 2), "pick": pick.config.text,
            "pick_us": round(pick.us, 2), "aten_us": round(FITTED.predict_aten(setting), 2),
            "same_tile": block == (pick.tile.m, pick.tile.n, pick.tile.k),
            "same_rows": block[0] == pick.tile.m, "same_depth": block[2] == pick.tile.k,
        })  # fmt: skip
    count = len(found)
    share = {
        name: round(sum(one[name] for one in found) / count, 3) for name in ("same_tile", "same_rows", "same_depth")
    }
    losses = [one["rule_us"] / one["pick_us"] for one in found]
    return {
        "what": "agreement of the model's A100 picks with rules for the A100; every time is the model's own",
        "problems": count, **share,
        "modelled_time_of_rule_over_pick": {
            "mean": round(_mean(losses), 3), "p95": round(_percentile(losses, 0.95), 3),
        },
        "grid": found,
    }  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("folder", type=Path, nargs="+", metavar="FOLDER", help="archives of one device")
    parser.add_argument("--ops", nargs="+", metavar="OP", help="only these, those with trees of their own")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the result")


def main(options: argparse.Namespace) -> None:
    """Evaluate, print the summary, and write it with the raw answers."""
    covered = divided(cost_model.samples(rows(options.folder)))[0]
    wanted = options.ops or [op for op in OPS if op not in TREE_OPS]
    pairs = list(held_out([sample for sample in covered if sample.problem.op in wanted]))
    answers, corrected = [one for one, _ in pairs], [one for _, one in pairs if one is not None]
    rules = against_rules()
    shown = {name: value for name, value in rules.items() if name != "grid"}
    document = {
        "archives": [folder.as_posix() for folder in options.folder],
        "held_out": summary(answers),
        "held_out_with_trees": summary(corrected),
        "a100_rules": shown,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    name = "model-own" if options.ops else "model"
    (options.out / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
    raw: list[dict[str, Any]] = [{"held_out": asdict(answer)} for answer in answers]
    raw += [
        *({"held_out_with_trees": asdict(answer)} for answer in corrected),
        *({"a100": one} for one in rules["grid"]),
    ]
    with gzip.GzipFile(options.out / f"{name}-answers.jsonl.gz", "wb", mtime=0) as file:
        file.write("".join(json.dumps(one) + "\n" for one in raw).encode())
    print(json.dumps(document, indent=1))
