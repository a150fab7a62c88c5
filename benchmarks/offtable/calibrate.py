"""Fit the bounds by which `near` and `model` serve what is faster than ATen for certain.

    python -m benchmarks.offtable calibrate [FILE.jsonl.gz] [--own FILE.jsonl.gz] [--write] [--check]

FILE is what `against-aten` wrote, and that of `--own` what `against-aten --ops bmm scaled_mm` wrote: of the ops with
trees of their own it gives the margins of `model`, and changes nothing else. The (N, K) pairs of the problems are dealt
into folds: how far the bounds hold is checked on the pairs that the weights were not fitted to. `--write` writes
`gemmdb/lookup/calibration.py`.
`--check` fits the bounds five times more, each time without one fold, and counts the answers in that fold which are
slower than ATen: these bounds know nothing of their (N, K). The shipped bounds are counted beside them. It takes eight
minutes. Needs gemmdb[fit].
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT
from benchmarks.offtable.against_aten import OUT, OWN_OUT
from benchmarks.offtable.folds import fold_of
from gemmdb import trust
from gemmdb.generators.fit import bounds
from gemmdb.generators.fit.bounds import Bounds, Outcome
from gemmdb.key.problem import Problem
from gemmdb.lookup.bounds import FEATURES
from gemmdb.lookup.calibration import NEAR, WEIGHTS
from gemmdb.settings import Policy

TARGET = ROOT / "gemmdb" / "lookup" / "calibration.py"
CAPABILITIES = [90]
SHIPPED = Bounds(NEAR, tuple(WEIGHTS))
SLOWER = (1.02, 1.05, 1.10)
DIGITS = 3
HEAD = '''"""What `bounds` adds to expected times, fitted to answers for problems held out of the measured table.

Written by `python -m benchmarks.offtable calibrate --write`; do not edit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

'''


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("file", nargs="?", type=Path, default=OUT, help="what `against-aten --out` wrote")
    parser.add_argument("--own", type=Path, default=OWN_OUT, help="the same for the ops with trees of their own")
    parser.add_argument("--level", type=float, default=bounds.LEVEL, help="the share of bounds that hold")
    parser.add_argument("--check", action="store_true", help="count with bounds that do not know the (N, K) either")
    parser.add_argument("--write", action="store_true", help=f"write {TARGET.relative_to(ROOT)}")


def main(options: argparse.Namespace) -> None:
    """Fit, print, write."""
    lines, own = read(options.file), read(options.own)
    found = list(outcomes(lines))
    fitted = bounds.fit(found, options.level)
    margins = bounds.margins((*modelled(lines), *modelled(own, 0.0)), options.level)
    print("\n".join(told(found, fitted, margins)))
    if options.check:
        print("\n".join(checked(lines, found, options.level)))
    if options.write:
        TARGET.write_text(text(fitted, margins, _origin(options, len(found), len(lines))))


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(text) for text in file]


def outcomes(lines: Iterable[Mapping[str, Any]]) -> Iterator[Outcome]:
    """The candidates of `near` that were timed."""
    for line in lines:
        group = fold_of(Problem.parse(line["problem"]))
        for one in line["near"]:
            if one["measured"] is not None:
                yield Outcome(line["op"], group, one["expected"], one["measured"], tuple(one["features"]))


def modelled(lines: Iterable[Mapping[str, Any]], most: float = math.inf) -> Iterator[tuple[str, float, float]]:
    """The first candidates of the cost model that were timed: op, expected and measured logarithm. `most`: the largest
    expectation that counts. Of large fp8 GEMMs the model knows few kernels, all far slower than ATen. They are never
    served, and what it expects of them is off by a factor of three."""
    for line in lines:
        one = line["model"]
        if one is not None and one["measured"] is not None and one["expected"] <= most:
            yield line["op"], one["expected"], one["measured"]


def told(found: Sequence[Outcome], fitted: Bounds, margins: Mapping[str, float]) -> Iterator[str]:
    """The fit, and how many of the outcomes whose bound is below ATen's time are above it."""
    yield ", ".join(f"{name} {weight:.3f}" for name, weight in zip(FEATURES, fitted.weights, strict=True))
    for op, constant in fitted.constants.items():
        own = [one for one in found if one.op == op]
        sure = [one for one in own if fitted.of(one) < 0]
        slow = sum(one.measured > 0.05 for one in sure)
        yield (
            f"{op}: {constant:+.3f}; {len(sure)} of {len(own)} outcomes are faster for certain, of which {slow} were"
            f" slower by 5%; model: {margins.get(op, float('inf')):.3f}"
        )


def checked(lines: Sequence[Mapping[str, Any]], found: Sequence[Outcome], level: float) -> Iterator[str]:
    """The answers of `near` by bounds that were fitted without their fold, and by the shipped ones, by what was held
    out."""
    held: dict[tuple[str, str], list[tuple[Mapping[str, Any], Bounds]]] = defaultdict(list)
    for fold in sorted({one.group for one in found}):
        anew = bounds.fit([one for one in found if one.group != fold], level)
        here = [line for line in lines if fold_of(Problem.parse(line["problem"])) == fold]
        for line in here:
            held[line["held_out"], "anew"].append((line, anew))
            held[line["held_out"], "shipped"].append((line, SHIPPED))
    for (way, name), pairs in held.items():
        yield f"{way}, {name}: {', '.join(counted(pairs))}"


def counted(pairs: Sequence[tuple[Mapping[str, Any], Bounds]]) -> Iterator[str]:
    """What bounds let through on some problems, and how often they hold. `gain`: the geometric mean over ATen, with
    ATen where nothing is let through or known."""
    served = [best["measured"] for line, fitted in pairs if (best := first(line, fitted)) is not None]
    known = [value for value in served if value is not None]
    kept = [
        one.measured <= fitted.of(one)
        for line, fitted in pairs
        for one in outcomes([line])
        if one.op in fitted.constants
    ]
    yield f"{len(pairs)} problems"
    yield f"{len(served)} kernels"
    yield f"{len(known)} timed"
    for limit in SLOWER:
        yield f"{sum(value > math.log(limit) for value in known)} slower by {limit - 1:.0%}"
    yield f"gain {math.exp(-sum(known) / len(pairs)):.4f}x"
    if kept:
        yield f"{sum(kept) / len(kept):.1%} of the candidates within their bounds"


def first(line: Mapping[str, Any], fitted: Bounds) -> Mapping[str, Any] | None:
    """The first candidate of a line that the bounds let through, None if they let none."""
    for one in line["near"]:
        features = dict(zip(FEATURES, one["features"], strict=True))
        alone = features["no_trees"] and (features["unseen"] or features["once"])
        if alone or one["expected"] > -math.log1p(Policy().min_gain) or line["op"] not in fitted.constants:
            continue
        if fitted.of(Outcome(line["op"], 0, one["expected"], 0.0, tuple(one["features"]))) < 0:
            return dict(one)
    return None


def text(fitted: Bounds, margins: Mapping[str, float], origin: Mapping[str, Any]) -> str:
    """The source of the module."""
    weights = tuple(round(weight, DIGITS) for weight in fitted.weights)
    parts = (
        ("CAPABILITIES: Sequence[int]", CAPABILITIES, "Compute capabilities of the GPUs that it holds for."),
        ("ORIGIN: Mapping[str, object]", dict(origin), "What it was fitted to."),
        ("NEAR: Mapping[str, float]", _finite(fitted.constants), "What every expected logarithm gets on top, by op."),
        ("WEIGHTS: Sequence[float]", weights, f"Of {', '.join(FEATURES)}."),
        ("MODEL: Mapping[str, float]", _finite(margins),
         "The margin of the cost model's first candidate, by op, as a logarithm."),
    )  # fmt: skip
    return HEAD + "\n".join(f'{name} = {_literal(value)}\n"""{what}"""\n' for name, value, what in parts)


def _literal(value: Any, indent: str = "") -> str:
    """The value as Python source, one item a line where it is nested."""
    inner = f"{indent}    "
    if isinstance(value, dict):
        items = "".join(f"{inner}{_literal(k)}: {_literal(v, inner)},\n" for k, v in value.items())
        return f"{{\n{items}{indent}}}"
    if isinstance(value, tuple) and value and isinstance(value[0], float):
        lines = textwrap.wrap(", ".join(map(repr, value)) + ",", 120 - len(inner))
        return "(\n" + "".join(f"{inner}{line}\n" for line in lines) + f"{indent})"
    if isinstance(value, tuple):
        return "(\n" + "".join(f"{inner}{_literal(item)},\n" for item in value) + f"{indent})"
    return '"' + value + '"' if isinstance(value, str) else repr(value).replace("'", '"')


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    """Ops with too few outcomes are left out."""
    return {op: round(value, DIGITS) for op, value in values.items() if value != float("inf")}


def _origin(options: argparse.Namespace, outcomes: int, problems: int) -> dict[str, Any]:
    return {
        "level": options.level, "outcomes": outcomes, "answers": problems,
        "file": options.file.name, "sha256": trust.sha256_of(options.file),
        "own": options.own.name, "own_sha256": trust.sha256_of(options.own),
    }  # fmt: skip
