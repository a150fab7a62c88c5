"""Off the table: how good are the answers for problems that no row is about? Runs on the CPU, in minutes.

    python benchmarks/offtable.py benchmarks/results/h200/DATE... --out benchmarks/results/offtable

Problems of the archives are held out, in two ways: one problem at a time where others with its N and K remain (`m`),
and all problems of an (N, K) pair at once (`nk`). What remains is a table as users have it, and rung `near` is asked,
with a cost model and trees that were fitted without a fifth of the (N, K) pairs, that of the problem among them.
An answer is scored by the best measured time of the held-out problem over the measured time of what was answered.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import math
import shutil
import sqlite3
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from offtable_folds import PARTS, part_of, without

from gemmdb.generators.files import archive
from gemmdb.generators.fit import cost_model, write
from gemmdb.generators.fit.cost_model import Sample
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.legality import illegal
from gemmdb.key.problem import Problem, Query
from gemmdb.ladder.ask import Ask
from gemmdb.ladder.candidates import candidates
from gemmdb.ladder.near import near, predict_near
from gemmdb.settings import Policy
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Pooled
from gemmdb.table.writer import Store

POLICY = Policy()
MEASUREMENTS = 4
"""Candidates that live tuning measures besides ATen."""


@dataclasses.dataclass(frozen=True)
class Truth:
    """What was measured of one problem, fastest first."""

    problem: Problem
    pooled: list[Pooled]

    @property
    def best(self) -> float:
        """The least time relative to ATen, of what was measured in full."""
        return min(one.ratio for one in self.pooled if one.servable)

    def share(self, config: Config) -> float | None:
        """The best time over that of `config`; None when it was not timed."""
        ratio = next((one.ratio for one in self.pooled if one.config == config), None)
        return None if ratio is None else min(1.0, self.best / ratio)

    def first(self, configs: Iterator[Config]) -> float:
        """The share of the first config that was timed here: peers are not asked again for what was not."""
        return next(share for config in configs if (share := self.share(config)) is not None)


@dataclasses.dataclass(frozen=True)
class Fold:
    """A table without some problems, those problems, and the others."""

    table: Table
    truths: list[Truth]
    rest: list[Truth]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="archives of one table")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--most", type=int, default=400, help="sets of problems held out each way, a fixed choice")
    args = parser.parse_args()
    parts = sorted(part for folder in args.folders for part in folder.glob("rows-*.jsonl.xz"))
    name = "+".join(folder.name for folder in args.folders)
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary) / "whole.db"
        archive.restore(parts, whole)
        with Store.open(whole) as store:
            store.refresh()
        samples = cost_model.samples(write.rows(args.folders))
        rows = list(hold_out(whole, args.most, samples))
    args.out.mkdir(parents=True, exist_ok=True)
    with gzip.open(args.out / f"{name}.jsonl.gz", "wt", encoding="utf-8", compresslevel=9) as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    print(f"{len(rows)} answers: {args.out / f'{name}.jsonl.gz'}; python benchmarks/offtable_report.py {args.out}")


def hold_out(whole: Path, most: int, samples: Sequence[Sample]) -> Iterator[dict[str, Any]]:
    """One row per held-out problem, of both ways."""
    with closing(Table.open(whole, immutable=True)) as table:
        (device,) = table.devices()
        truths = {problem: Truth(problem, table.pooled(problem, device)) for problem in problems(table)}
    sets = [(kind, held) for kind in ("m", "nk") for held in chosen(truths, kind, most)]
    for part in range(PARTS):
        with without(part, samples):
            for kind, held in sets:
                if part_of(held[0]) == part:
                    with fold(whole, truths, held) as one:
                        for truth in one.truths:
                            yield {"held_out": kind, **answer(one, truth)}


def chosen(known: Iterable[Problem], kind: str, most: int) -> list[list[Problem]]:
    """`most` sets of problems to hold out, in an order that is always the same."""
    known = list(known)
    groups: dict[object, list[Problem]] = defaultdict(list)
    cells = Counter((problem.op, problem.family, problem.n, problem.k) for problem in known)
    for problem in known:
        if kind == "nk":
            groups[problem.n, problem.k].append(problem)
        elif cells[problem.op, problem.family, problem.n, problem.k] > 1:
            groups[problem].append(problem)
    # By their hashes: any choice would do that is always the same one.
    return sorted(groups.values(), key=lambda held: held[0].key)[:most]


@contextmanager
def fold(whole: Path, truths: Mapping[Problem, Truth], held: Sequence[Problem]) -> Iterator[Fold]:
    """The table without some problems."""
    path = whole.with_name("fold.db")
    shutil.copyfile(whole, path)
    with closing(sqlite3.connect(path)) as db, db:
        for problem in held:
            db.execute("DELETE FROM measurement WHERE problem = ?", (problem.key,))
            db.execute("DELETE FROM verdict WHERE problem = ?", (problem.key,))
    with closing(Table.open(path, immutable=True)) as table:
        yield Fold(table, [truths[p] for p in held], [t for p, t in truths.items() if p not in held])


def problems(table: Table) -> list[Problem]:
    """The problems of a table with a measured ATen, in a fixed order."""
    found = {row.problem for row in table.measurements() if row.config == ATEN and row.times}
    return sorted(found, key=lambda problem: problem.text)


def answer(fold: Fold, truth: Truth) -> dict[str, Any]:
    """What the ladder and its peers say of a held-out problem, and what it is worth."""
    (device,) = fold.table.devices()
    ask = Ask(Query(truth.problem, device), (fold.table,), POLICY, None)
    step, prediction = near(ask), predict_near(ask)
    tried = [config for config in candidates(ask) if truth.share(config) is not None]
    row: dict[str, Any] = {
        "problem": truth.problem.text,
        "op": truth.problem.op,
        "m": truth.problem.m,
        "aten": truth.share(ATEN),
        "peers": {name: truth.first(peer(truth.problem, fold, device)) for name, peer in PEERS.items()},
    }
    if tried:
        row["live"] = max(share for c in (ATEN, *tried[:MEASUREMENTS]) if (share := truth.share(c)))
    if not isinstance(prediction, str):
        row["distance"] = prediction.evidence["distance"]
    if step.hit is not None:
        row["config"], row["expected_us"] = step.hit.config.text, step.hit.expected_us
        row["promise"], row["share"] = step.hit.evidence["expected_loss"], truth.share(step.hit.config)
    return row


def nearest_copy(problem: Problem, fold: Fold, device: Any) -> Iterator[Config]:
    """The winner of the nearest problem of the family, as it is."""
    family = [t for t in fold.rest if (t.problem.op, t.problem.family) == (problem.op, problem.family)]
    by_distance = sorted(family, key=lambda t: math.dist(_logs(problem), _logs(t.problem)))
    return _copied(by_distance[:1], problem, device)


def nearest_m(problem: Problem, fold: Fold, device: Any) -> Iterator[Config]:
    """vLLM's rule: the winner of the nearest M in the table for the same N and K, else the default kernel."""
    key = (problem.op, problem.family, problem.n, problem.k)
    same = [t for t in fold.rest if (t.problem.op, t.problem.family, t.problem.n, t.problem.k) == key]
    return _copied(sorted(same, key=lambda t: (abs(t.problem.m - problem.m), t.problem.m))[:1], problem, device)


def most_common(problem: Problem, fold: Fold, device: Any) -> Iterator[Config]:
    """The config that wins most often for the op."""
    winners = Counter(t.pooled[0].config for t in fold.rest if t.problem.op == problem.op)
    common = [c for c, _ in winners.most_common() if illegal(c, problem, device) is None]
    return iter((*common, ATEN))


def _logs(problem: Problem) -> tuple[float, ...]:
    return tuple(math.log(size) for size in (problem.m, problem.n, problem.k))


def _copied(found: Sequence[Truth], problem: Problem, device: Any) -> Iterator[Config]:
    configs = (one.config for truth in found for one in truth.pooled if one.servable)
    yield from (config for config in configs if illegal(config, problem, device) is None)
    yield ATEN


PEERS: dict[str, Callable[[Problem, Fold, Any], Iterator[Config]]] = {
    "nearest copy": nearest_copy,
    "nearest M": nearest_m,
    "most common": most_common,
}


if __name__ == "__main__":
    main()
