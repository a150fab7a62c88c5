"""Near and model together, on problems whose (N, K) no row has: the figures of the whole ladder below `exact`.

    python benchmarks/offtable_combined.py benchmarks/results/h200/2026-11-20b benchmarks/results/h200/2026-11-20c \\
        --out benchmarks/results/offtable

All archives make one table. Its (N, K) pairs are dealt into five parts; for each, the cost model, its menus and its
trees are fitted to the rest of the rows, also where rung `near` uses them, the part's problems are taken out of the
table, and asked. A share is the best measured time of a problem over the measured time of what was answered, never more
than 1:

- `near or model`: what `near` serves, else what the model puts first, else ATen where it expects no gain; over all
  problems that either answers. `default policy`: what the two rungs serve under the default policy, ATen where they
  decline, over all problems.
- `live`: the best of ATen and four proposals, as live tuning would find: the first of `gemmdb.ladder.candidates`, else
  of the generator's menu, those that were timed. `live, quick`: where only what needs no nvcc is proposed, and no torch
  where the model covers the problem, as within 20 s. `quick, at best`: the best of all that was timed of these, and
  ATen: no choice of proposals can do better.
- `kept`: of the answers that promise at most 5% loss, how many keep it.

Peers that need no table are scored on the same problems (`offtable_peers.py`).
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import shutil
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from offtable import MEASUREMENTS, POLICY, Truth, problems
from offtable_folds import PARTS, part_of, without
from offtable_peers import scores

from gemmdb.generators.build.effort import named
from gemmdb.generators.files import archive
from gemmdb.generators.fit import coefficients
from gemmdb.generators.fit.write import rows
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.ladder import model
from gemmdb.ladder.ask import Ask
from gemmdb.ladder.candidates import candidates
from gemmdb.ladder.near import near
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

QUICKLY = 9
"""As in live tuning: kernels that cost more to compile are not proposed."""
DEEP = 400
"""Of the model's ranking, how far down timed configs are looked for."""
PROMISE = 0.05
FIGURES = ("near or model", "default policy", "near", "model", "live", "live, quick", "quick, at best", "aten")
PEERS = (
    ("nvMatmulHeuristics TRITON", "first"),
    ("nvMatmulHeuristics TRITON", "four"),
    ("nvMatmulHeuristics CUTLASS3", "first"),
    ("nvMatmulHeuristics CUTLASS3", "four"),
    ("Inductor's default list", "all"),
)


def main() -> None:
    """Ask, print the summary, and write it with the raw answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="archives of one device")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.db"
        parts = [part for one in options.folders for part in sorted(one.glob("rows-*.jsonl.xz"))]
        archive.restore(parts, whole)
        with Store.open(whole) as store:
            store.refresh()
        answers = list(answered(whole, options.folders))
    document = {"archives": [one.as_posix() for one in options.folders], "held_out": summary(answers)}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "combined.json").write_text(json.dumps(document, indent=1) + "\n")
    with gzip.GzipFile(options.out / "combined-answers.jsonl.gz", "wb", mtime=0) as file:
        file.write("".join(json.dumps(one) + "\n" for one in answers).encode())
    print("\n".join(markdown(document["held_out"])))


def answered(whole: Path, folders: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """One row per problem."""
    samples = list(coefficients.samples(rows(folders)))
    with closing(Table.open(whole, immutable=True)) as table:
        (device,) = table.devices()
        truths = [Truth(problem, table.pooled(problem, device)) for problem in problems(table)]
    for part in range(PARTS):
        held = [truth for truth in truths if part_of(truth.problem) == part]
        path = whole.with_name(f"part{part}.db")
        shutil.copyfile(whole, path)
        with closing(sqlite3.connect(path)) as db, db:
            for truth in held:
                for name in ("measurement", "verdict"):
                    db.execute(f"DELETE FROM {name} WHERE problem = ?", (truth.problem.key,))
        with without(part, samples), closing(Table.open(path, immutable=True)) as table:
            for truth in held:
                yield answer(truth, device, table)


def answer(truth: Truth, device: Device, table: Table) -> dict[str, Any]:
    """What the rungs say of a held-out problem, as shares; None for what was not timed there."""
    ask = Ask(Query(truth.problem, device), (table,), POLICY, None)
    step = near(ask)
    first, gain = modelled(ask, truth)
    answered = None if first is None else truth.share(first if gain >= POLICY.min_gain else ATEN)
    nearby = None if step.hit is None else truth.share(step.hit.config)
    clear = truth.share(first) if first is not None and gain >= POLICY.model_gain else truth.share(ATEN)
    shares = {one.config: share for one in truth.pooled if (share := truth.share(one.config)) is not None}
    order = timed(ask, truth)
    quick = timed(replace(ask, policy=replace(POLICY, compile_cost=QUICKLY)), truth)
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
    """The first config of rung `model` that was timed, and the gain over ATen that it expects of it."""
    for count in (model.PROPOSALS, DEEP):
        proposed = model.ranked(ask, count)
        for one in () if isinstance(proposed, str) else proposed.best:
            if truth.share(one.config) is not None and not isinstance(proposed, str):
                return one.config, proposed.aten_us / one.us - 1
    return None, 0.0


def timed(ask: Ask, truth: Truth) -> list[Config]:
    """What live tuning would try, of what was timed."""
    order = [config for config in candidates(ask) if truth.share(config) is not None]
    if order:
        return order
    menu = CudaSpace(False).candidates(truth.problem, ask.device, named("quick", "cuda"))
    return [one.config for one in menu if one.config != ATEN and truth.share(one.config) is not None]


def _quick(problem: Problem, config: Config) -> bool:
    """As in live tuning: what only Inductor can make is left out where there are others that are as good."""
    others = not config.spec.emitted
    return config.spec.cost <= QUICKLY and (others or model.uncovered(problem) is not None)


def _live(order: Sequence[Config], shares: dict[Config, float]) -> float:
    return max(shares[config] for config in (ATEN, *order[:MEASUREMENTS]))


def summary(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By op and over all: how many, geometric mean and 5th percentile of each figure."""
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


if __name__ == "__main__":
    main()
