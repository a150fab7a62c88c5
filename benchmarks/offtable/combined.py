"""Near and model together, on problems whose (N, K) no row has: the figures of the whole lookup below `exact`.

    python -m benchmarks.offtable combined benchmarks/results/h200/2026-11-20b benchmarks/results/h200/2026-11-20c \\
        --out benchmarks/results/offtable

All archives make one table, whose (N, K) pairs are dealt into five folds. For each fold, the cost model, its menus and
its trees are fitted to the other rows, rung `near` uses them too, the problems of the fold leave the table, and the
lookup answers them. A share is the best measured time of a problem over the measured time of the answer, at most 1:

- `near or model`: the answer of `near`, else the first of the model, else ATen if the model expects no gain; over all
  problems that either answers. `default policy`: what the two rungs serve under the default policy, ATen if they
  decline; over all problems.
- `live`: the best of ATen and four candidates, as live tuning would find it: the first of `acceptance.tuning`,
  else of the generator's menu, that were timed. `live, quick`: only candidates that need no nvcc, and no torch if the
  model covers the problem, as within 20 s. `quick, at best`: the best of all that was timed of these, and ATen; no
  choice of candidates does better.
- `kept`: of the answers that promise at most 5% loss, how many keep it.

Peers that need no table are scored on the same problems (`peers.py`).
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.offtable import held_out
from benchmarks.offtable.folds import FOLDS, fitted_without, fold_of
from benchmarks.offtable.held_out import MEASUREMENTS, POLICY, Truth
from benchmarks.offtable.peers import scores
from gemmdb.generators.effort import named
from gemmdb.generators.fit import cost_model
from gemmdb.generators.fit.write import rows
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import ranking
from gemmdb.lookup.acceptance.near import near
from gemmdb.lookup.acceptance.tuning import candidates
from gemmdb.lookup.ask import Ask
from gemmdb.rejected import Rejected
from gemmdb.settings import FAST_COMPILE_COST
from gemmdb.table.reader import Table

DEEP = 400
"""How far down the model's ranking timed configs are looked for."""
PROMISE = 0.05
FIGURES = ("near or model", "default policy", "near", "model", "live", "live, quick", "quick, at best", "aten")
PEERS = (
    ("nvMatmulHeuristics TRITON", "first"),
    ("nvMatmulHeuristics TRITON", "four"),
    ("nvMatmulHeuristics CUTLASS3", "first"),
    ("nvMatmulHeuristics CUTLASS3", "four"),
    ("Inductor's default list", "all"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="archives of one device")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the result")


def main(options: argparse.Namespace) -> None:
    """Ask, print the summary, and write it with the raw answers."""
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.db"
        held_out.united(held_out.archives(options.folders), whole)
        answers = list(answered(whole, options.folders))
    figures = summary(answers)
    document = {"archives": [one.as_posix() for one in options.folders], "held_out": figures}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "combined.json").write_text(json.dumps(document, indent=1) + "\n")
    with gzip.GzipFile(options.out / "combined-answers.jsonl.gz", "wb", mtime=0) as file:
        file.write("".join(json.dumps(one) + "\n" for one in answers).encode())
    print("\n".join(markdown(figures)))


def answered(whole: Path, folders: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """One row per problem."""
    samples = list(cost_model.samples(rows(folders)))
    truths = held_out.truths(whole)
    for fold in range(FOLDS):
        held = [truth for problem, truth in truths.items() if fold_of(problem) == fold]
        with (
            fitted_without(fold, samples),
            held_out.without(whole, [truth.problem for truth in held]) as table,
        ):
            for truth in held:
                yield answer(truth, table)


def answer(truth: Truth, table: Table) -> dict[str, Any]:
    """The answers of the rungs to a held-out problem, as shares; None for a config that was not timed on it."""
    (device,) = table.devices()
    ask = Ask(Query(truth.problem, device), (table,), POLICY, None)
    step = near(ask)
    first, gain = modelled(ask, truth)
    answered = None if first is None else truth.share(first if gain >= POLICY.min_gain else ATEN)
    nearby = None if step.hit is None else truth.share(step.hit.config)
    clear = truth.share(first) if first is not None and gain >= POLICY.model_gain else truth.share(ATEN)
    shares = {one.config: share for one in truth.pooled if (share := truth.share(one.config)) is not None}
    order = timed(ask, truth)
    quick = timed(replace(ask, policy=replace(POLICY, compile_cost=FAST_COMPILE_COST)), truth)
    promise = None if nearby is None or step.hit is None else step.hit.evidence["expected_loss"]
    return {
        "problem": truth.problem.text, "op": truth.problem.op, "m": truth.problem.m, "near": nearby, "promise": promise,
        "untimed": step.hit is not None and nearby is None, "model": answered,
        "near or model": nearby if step.hit is not None else answered,
        "default policy": nearby if step.hit is not None else clear,
        "live": _live(order, shares),
        "live, quick": _live([one for one in quick if _quick(truth.problem, one)], shares),
        "quick, at best": max(share for one, share in shares.items() if one == ATEN or _quick(truth.problem, one)),
        "aten": shares[ATEN], "peers": scores(truth.problem, shares),
    }  # fmt: skip


def modelled(ask: Ask, truth: Truth) -> tuple[Config | None, float]:
    """The first config of rung `model` that was timed, and the gain over ATen that the model expects of it."""
    for count in (ranking.LIVE_CANDIDATES, DEEP):
        ranked = ranking.rank(ask, count)
        for one in () if isinstance(ranked, Rejected) else ranked.best:
            if truth.share(one.config) is not None and not isinstance(ranked, Rejected):
                return one.config, ranked.aten_us / one.us - 1
    return None, 0.0


def timed(ask: Ask, truth: Truth) -> list[Config]:
    """The configs that live tuning would try, if they were timed."""
    order = [config for config in candidates(ask) if truth.share(config) is not None]
    if order:
        return order
    menu = CudaSpace(False).candidates(truth.problem, ask.device, named("quick", "cuda"))
    return [one.config for one in menu if one.config != ATEN and truth.share(one.config) is not None]


def _quick(problem: Problem, config: Config) -> bool:
    """Whether quick live tuning tries a config. It leaves out configs that only Inductor can make if others are as
    good."""
    others = not config.spec.emitted
    return config.spec.cost <= FAST_COMPILE_COST and (others or ranking.uncovered(problem) is not None)


def _live(order: Sequence[Config], shares: dict[Config, float]) -> float:
    return max(shares[config] for config in (ATEN, *order[:MEASUREMENTS]))


def summary(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Number, geometric mean and 5th percentile of each figure, by op and over all."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in answers:
        groups[one["op"]].append(one)
        groups["all"].append(one)
    return {op: {"problems": len(group), **_figures(group)} for op, group in sorted(groups.items())}


def _figures(group: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found = {name: _figure([one[name] for one in group]) for name in FIGURES}
    sure = [one["near"] for one in group if one["promise"] is not None and one["promise"] <= PROMISE]
    found["kept"] = {
        "number": len(sure),
        "share": round(sum(1 / s - 1 <= PROMISE for s in sure) / max(len(sure), 1), 3),
    }
    for name, which in PEERS:
        asked = [one["peers"][name] for one in group if name in one["peers"]]
        if asked:
            away = sum(one["distance"] for one in asked) / len(asked)
            found[f"{name}, {which}"] = _figure([one[which] for one in asked]) | {"distance": round(away, 2)}
    return found


def _figure(shares: Sequence[float | None]) -> dict[str, float]:
    values = sorted(share for share in shares if share is not None)
    if not values:
        return {"number": 0}
    mean = math.exp(sum(map(math.log, values)) / len(values))
    return {"number": len(values), "mean": round(mean, 3), "p5": round(values[int(len(values) * 0.05)], 3)}


def markdown(found: dict[str, Any]) -> Iterator[str]:
    """The summary as a table."""
    ops = list(found)
    numbers = [found[op]["problems"] for op in ops]
    heads = " | ".join(f"{op} ({number})" for op, number in zip(ops, numbers, strict=True))
    yield f"| answer | {heads} |"
    yield f"|---|{'---|' * len(ops)}"
    for name in (name for name in found["all"] if name != "problems"):
        cells = (found[op].get(name, {"number": 0}) for op in ops)
        yield f"| {name} | {' | '.join(_cell(cell) for cell in cells)} |"


def _cell(cell: dict[str, float]) -> str:
    if not cell["number"]:
        return "-"
    if "share" in cell:
        return f"{cell['share']:.2f} ({cell['number']})"
    return f"{cell['mean']:.3f} / {cell['p5']:.3f} ({cell['number']})"
