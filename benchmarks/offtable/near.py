"""Off the table: how good are the answers for problems that no row is about? Runs on the CPU, in minutes.

    python -m benchmarks.offtable near benchmarks/results/h200/DATE... --out benchmarks/results/offtable

Problems of the archives are held out in two ways: one problem at a time if others with its N and K remain (`m`), and
all problems of an (N, K) pair at once (`nk`). The rest is a table as users have it. Rung `near` answers from it, with a
cost model and trees that were fitted without a fifth of the (N, K) pairs, which includes that of the problem. The score
of an answer is the best measured time of the held-out problem over the measured time of the answer.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.offtable import held_out
from benchmarks.offtable.folds import FOLDS, fitted_without, fold_of
from benchmarks.offtable.held_out import MEASUREMENTS, POLICY, Truth
from gemmdb.generators.fit import cost_model, write
from gemmdb.generators.fit.cost_model import Sample
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup.acceptance.near import near
from gemmdb.lookup.acceptance.tuning import candidates
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.from_neighbours import predict
from gemmdb.rejected import Rejected
from gemmdb.table.reader import Table


@dataclasses.dataclass(frozen=True)
class Split:
    """A table without some problems, those problems, and the others."""

    table: Table
    held: list[Truth]
    rest: list[Truth]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="archives of one table")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the answers")
    parser.add_argument("--most", type=int, default=400, help="sets of problems held out each way, a fixed choice")


def main(options: argparse.Namespace) -> None:
    """Hold out, ask, write the answers."""
    name = "+".join(folder.name for folder in options.folders)
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary) / "whole.db"
        held_out.united(held_out.archives(options.folders), whole)
        samples = cost_model.samples(write.rows(options.folders))
        rows = list(answers(whole, options.most, samples))
    options.out.mkdir(parents=True, exist_ok=True)
    out = options.out / f"{name}.jsonl.gz"
    with gzip.open(out, "wt", encoding="utf-8", compresslevel=9) as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    print(f"{len(rows)} answers: {out}; next: python -m benchmarks.offtable report {options.out}")


def answers(whole: Path, most: int, samples: Sequence[Sample]) -> Iterator[dict[str, Any]]:
    """One row per held-out problem, of both ways."""
    truths = held_out.truths(whole)
    sets = [(kind, held) for kind in ("m", "nk") for held in held_out.chosen(truths, kind, most)]
    for fold in range(FOLDS):
        with fitted_without(fold, samples):
            for kind, held in sets:
                if fold_of(held[0]) == fold:
                    with split(whole, truths, held) as one:
                        for truth in one.held:
                            yield {"held_out": kind, **answer(one, truth)}


@contextmanager
def split(whole: Path, truths: Mapping[Problem, Truth], held: Sequence[Problem]) -> Iterator[Split]:
    """The table without some problems."""
    with held_out.without(whole, held) as table:
        yield Split(table, [truths[p] for p in held], [t for p, t in truths.items() if p not in held])


def answer(split: Split, truth: Truth) -> dict[str, Any]:
    """The answers of the lookup and its peers to a held-out problem, and their shares of the best time."""
    (device,) = split.table.devices()
    ask = Ask(Query(truth.problem, device), (split.table,), POLICY, None)
    step, prediction = near(ask), predict(ask)
    tried = [config for config in candidates(ask) if truth.share(config) is not None]
    row: dict[str, Any] = {
        "problem": truth.problem.text,
        "op": truth.problem.op,
        "m": truth.problem.m,
        "aten": truth.share(ATEN),
        "peers": {name: truth.first(peer(truth.problem, split, device)) for name, peer in PEERS.items()},
    }
    if tried:
        row["live"] = max(share for c in (ATEN, *tried[:MEASUREMENTS]) if (share := truth.share(c)))
    if not isinstance(prediction, Rejected):
        row["distance"] = prediction.evidence["distance"]
    if step.hit is not None:
        row["config"], row["expected_us"] = step.hit.config.text, step.hit.expected_us
        row["promise"], row["share"] = step.hit.evidence["expected_loss"], truth.share(step.hit.config)
    return row


def nearest_copy(problem: Problem, split: Split, device: Device) -> Iterator[Config]:
    """The winner of the nearest problem of the family, unchanged."""
    family = [t for t in split.rest if (t.problem.op, t.problem.family) == (problem.op, problem.family)]
    by_distance = sorted(family, key=lambda t: math.dist(_logs(problem), _logs(t.problem)))
    return _copied(by_distance[:1], problem, device)


def nearest_m(problem: Problem, split: Split, device: Device) -> Iterator[Config]:
    """vLLM's rule: the winner of the nearest M in the table for the same N and K, else the default kernel."""
    key = (problem.op, problem.family, problem.n, problem.k)
    same = [t for t in split.rest if (t.problem.op, t.problem.family, t.problem.n, t.problem.k) == key]
    return _copied(sorted(same, key=lambda t: (abs(t.problem.m - problem.m), t.problem.m))[:1], problem, device)


def most_common(problem: Problem, split: Split, device: Device) -> Iterator[Config]:
    """The config that wins most often for the op."""
    winners = Counter(t.pooled[0].config for t in split.rest if t.problem.op == problem.op)
    common = [c for c, _ in winners.most_common() if c.rejection(problem, device) is None]
    return iter((*common, ATEN))


def _logs(problem: Problem) -> tuple[float, ...]:
    return tuple(math.log(size) for size in (problem.m, problem.n, problem.k))


def _copied(found: Sequence[Truth], problem: Problem, device: Device) -> Iterator[Config]:
    configs = (one.config for truth in found for one in truth.pooled if one.servable)
    yield from (config for config in configs if config.rejection(problem, device) is None)
    yield ATEN


PEERS: dict[str, Callable[[Problem, Split, Device], Iterator[Config]]] = {
    "nearest copy": nearest_copy,
    "nearest M": nearest_m,
    "most common": most_common,
}
"""Heuristics that need a table, by the names that the rows give them."""
