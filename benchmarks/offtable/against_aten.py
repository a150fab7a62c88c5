"""How many answers of `near` and `model` are slower than ATen, on problems that the table does not hold?

    python -m benchmarks.offtable against-aten [FOLDER...] [--out benchmarks/results/offtable/against-aten.jsonl.gz]

FOLDER holds archives; what they say of a problem is the truth. The table is the shipped one, without what is held out:

- `n, k`: the (N, K) pairs are dealt into five folds. One fold at a time leaves the table, and the cost model and its
  trees are fitted to the others.
- `class of m`: M from one power of two to the next is a class. Every fourth class leaves the table at a time, and the
  fit.
- `m`: a third of the problems leaves the table, so M lies between others of its (N, K). The fits are those of `n, k`.

`--fitted-to` fits to other archives than those that hold the truth: what do new rows add? `--parts` takes only some of
these sets, each with a fit of its own: `pairs-0` to `pairs-4` (`n, k` and `m`), `rows-0` to `rows-3` (`class of m`).

Two ways to ask: `certain`, where only what is faster than ATen for certain is served, and `confirming`, as before an
answer is timed. An answer whose config was not timed on the problem is `unknown`. `gain`: the geometric mean over ATen
of all problems, with ATen where no kernel is served or nothing is known.

The lines keep the figures of the first few candidates of each problem, which `calibrate` fits the bounds to, and in
`live` the times of those that live tuning would measure.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import SHIPPED
from benchmarks.offtable import held_out
from benchmarks.offtable.folds import FOLDS, fitted_to, fold_of
from benchmarks.offtable.held_out import Truth
from benchmarks.offtable.ways import WAYS
from gemmdb.generators.fit import cost_model, write
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup.acceptance.model import model
from gemmdb.lookup.acceptance.near import near
from gemmdb.lookup.acceptance.tuning import candidates
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.bounds import Certainty
from gemmdb.lookup.from_neighbours import predict
from gemmdb.lookup.ranking import LIVE_CANDIDATES, rank
from gemmdb.lookup.tree_correction import corrected
from gemmdb.rejected import Rejected
from gemmdb.table.reader import Table

FOLDERS = tuple(Path("benchmarks/results/h200") / name for name in ("2026-11-20b", "2026-11-22"))
OUT = Path("benchmarks/results/offtable/against-aten.jsonl.gz")
OWN_OUT = OUT.with_name("against-aten-own.jsonl.gz")
"""The same of the ops with trees of their own."""
CLASSES, LAST = 4, 14
"""Every how many classes of M one is held out, and the last class, which begins at 8,193."""
THIRD = 3
FIRST = 4
"""How many candidates of each problem are kept."""
DIGITS = 5


@dataclass(frozen=True)
class Part:
    """Sets of problems to hold out, by way, that share a fit. `fits`: whether the cost model is fitted to a problem."""

    name: str
    fits: Callable[[Problem], bool]
    held: dict[str, tuple[Problem, ...]]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("folders", nargs="*", type=Path, default=FOLDERS, metavar="FOLDER", help="archives of the H200")
    parser.add_argument("--table", type=Path, default=SHIPPED, help="default: the shipped H200 table")
    parser.add_argument("--ops", nargs="+", metavar="OP", help="only these; others are not refitted")
    parser.add_argument(
        "--fitted-to", nargs="+", type=Path, metavar="FOLDER", help="archives of the fits; default: FOLDER"
    )
    parser.add_argument("--parts", nargs="+", metavar="PART", help="only these of pairs-0 to pairs-4, rows-0 to rows-3")
    parser.add_argument("--fits", type=Path, help="a folder that keeps what is fitted, for a second run")
    parser.add_argument("--out", type=Path, default=OUT, help="the file of lines")


def main(options: argparse.Namespace) -> None:
    """Hold out, ask, write the lines, print the summary."""
    with tempfile.TemporaryDirectory() as temporary:
        whole, rest = Path(temporary) / "truth.db", Path(temporary) / "shipped.db"
        held_out.united(held_out.archives(options.folders), whole)
        truths = {p: truth for p, truth in held_out.truths(whole).items() if _asked(p, options.ops)}
        shutil.copyfile(options.table, rest)
        every = cost_model.samples(write.rows(options.fitted_to or options.folders))
        samples = [sample for sample in every if not options.ops or sample.problem.op in options.ops]
        lines = []
        for part in parts(list(truths)):
            if options.parts and part.name not in options.parts:
                continue
            keep = options.fits / f"{part.name}.pickle" if options.fits else None
            with fitted_to((s for s in samples if part.fits(s.problem)), keep):
                for way, held in part.held.items():
                    with held_out.without(rest, held) as table:
                        lines += [line(way, truths[problem], table) for problem in held]
                    print(f"{way}: {len(held)} problems", flush=True)
    with gzip.GzipFile(options.out, "wb", mtime=0) as file:
        file.write("".join(json.dumps(one) + "\n" for one in lines).encode())
    print("\n".join(markdown(lines)))


def _asked(problem: Problem, ops: Sequence[str] | None) -> bool:
    """Whether a problem is held out: one of the ops, by default of all that are not batched."""
    return problem.op in ops if ops else not problem.spec.batched


def parts(problems: Sequence[Problem]) -> Iterator[Part]:
    """What is held out, way by way."""
    for fold in range(FOLDS):
        inside = tuple(p for p in problems if fold_of(p) == fold)
        yield Part(f"pairs-{fold}", _outside(fold), {"n, k": inside, "m": tuple(p for p in inside if _dealt(p) == 0)})
    for rest in range(CLASSES):
        inside = tuple(p for p in problems if row_class(p) % CLASSES == rest)
        yield Part(f"rows-{rest}", _other_class(rest), {"class of m": inside})


def row_class(problem: Problem) -> int:
    """The class of M: 0 for 1, 1 for 2, 2 for 3 and 4, 3 for 5 to 8, up to LAST."""
    return min((problem.m - 1).bit_length(), LAST)


def line(way: str, truth: Truth, table: Table) -> dict[str, Any]:
    """The answers to a held-out problem, and its candidates."""
    (device,) = table.devices()
    problem = truth.problem
    asks = {name: Ask(Query(problem, device), (table,), policy, None) for name, policy in WAYS.items()}
    return {
        "held_out": way, "problem": problem.text, "op": problem.op, "m": problem.m,
        "odd": bool(problem.n % 8 or problem.k % 8),
        **{name: answer(ask, truth) for name, ask in asks.items()},
        "near": found(asks["confirming"], truth), "model": modelled(asks["confirming"], truth),
        "live": [_round(ratio(truth, config)) for config in candidates(asks["confirming"])[:LIVE_CANDIDATES]],
    }  # fmt: skip


def answer(ask: Ask, truth: Truth) -> dict[str, Any] | None:
    """The kernel that the rungs serve, and its measured time relative to ATen's (None: not timed); None for ATen."""
    hit = near(ask).hit or model(ask).hit
    if hit is None or hit.config == ATEN:
        return None
    return {"rung": hit.rung, "config": hit.config.text, "speedup": _round(hit.speedup),
            "ratio": _round(ratio(truth, hit.config))}  # fmt: skip


def found(ask: Ask, truth: Truth) -> list[dict[str, Any]]:
    """The first candidates of `near`: logarithms of expected and measured time relative to ATen, and the features."""
    nearby = predict(ask)
    if isinstance(nearby, Rejected):
        return []
    prediction = corrected(ask, nearby)
    certainty = Certainty(ask, prediction)
    return [
        {"expected": _round(math.log(prediction.ratios[config])), "measured": _log(ratio(truth, config)),
         "features": [_round(value) for value in certainty.features(config)]}
        for config in prediction.candidates(FIRST)
    ]  # fmt: skip


def modelled(ask: Ask, truth: Truth) -> dict[str, Any] | None:
    """The first candidate of the cost model: the same two logarithms."""
    ranked = rank(ask)
    if isinstance(ranked, Rejected):
        return None
    best = ranked.best[0]
    return {"expected": _round(math.log(best.us / ranked.aten_us)), "measured": _log(ratio(truth, best.config))}


def ratio(truth: Truth, config: Config) -> float | None:
    """The measured time of a config relative to ATen's, None if it was not timed."""
    return next((one.ratio for one in truth.pooled if one.config == config), None)


def markdown(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The summary as a table."""
    yield "| held out | problems | | asked | kernels | unknown | gain | slower by 5% | by 10% | worst |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for way in dict.fromkeys(one["held_out"] for one in lines):
        for name, member in GROUPS.items():
            group = [one for one in lines if one["held_out"] == way and member(one)]
            for asked in WAYS if group else ():
                yield f"| {way} | {name} | {len(group)} | {asked} | {' | '.join(figures(group, asked))} |"


def figures(lines: Sequence[dict[str, Any]], asked: str) -> Iterator[str]:
    """The cells of a row."""
    served = [one[asked] for one in lines if one[asked] is not None]
    known = [one["ratio"] for one in served if one["ratio"] is not None]
    yield str(len(served))
    yield str(len(served) - len(known))
    yield f"{math.exp(-sum(map(math.log, known)) / len(lines)):.3f}x"
    yield str(sum(value > 1.05 for value in known))
    yield str(sum(value > 1.10 for value in known))
    yield f"{1 / max(known):.2f}x" if known else "-"


def _of(op: str) -> Callable[[dict[str, Any]], bool]:
    return lambda one: bool(one["op"] == op)


GROUPS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "all": lambda one: True,
    **{op: _of(op) for op in ("mm", "addmm", "int_mm", "mixed_mm", "scaled_mm", "bmm")},
    "M <= 16": lambda one: bool(one["m"] <= 16),
    "17 to 256": lambda one: bool(17 <= one["m"] <= 256),
    "M > 256": lambda one: bool(one["m"] > 256),
    "N or K no multiple of 8": lambda one: bool(one["odd"]),
}


def _outside(fold: int) -> Callable[[Problem], bool]:
    return lambda problem: fold_of(problem) != fold


def _other_class(rest: int) -> Callable[[Problem], bool]:
    return lambda problem: row_class(problem) % CLASSES != rest


def _dealt(problem: Problem) -> int:
    return int.from_bytes(hashlib.sha256(problem.text.encode()).digest()[:4], "big") % THIRD


def _log(value: float | None) -> float | None:
    return None if value is None else _round(math.log(value))


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
