"""Tables that are cut off at every 4 KiB, and tables with flipped bits: what lookups answer.

    python -m benchmarks.hostile damage [--flips 10000] [--seed 1] [--out benchmarks/results/hostile/damage.json]

Each damaged file is opened and asked about some of its problems: verdicts, records, failures, which problems are near
and what their records hold; then what rung `near` answers for a problem beside. Every answer is compared with that of
the whole file. `right`: all are the same; `refused`: a TableError when the file is opened; `part`: some answers are a
TableError, the others are the same; `missing`: a row is not found, as if it had not been measured, which damage to
SQLite's own structures can do; `wrong`: another answer. Another answer of rung `near` is `wrong` if all other answers
are the same. If something is missing, it counts as `missing`. The tables are one of measurements, its packed form,
opened as a user's file and as one of a package, and a shipped one, opened with the digest of the manifest.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import ROOT, now
from gemmdb import trust
from gemmdb.cost.roofline import roofline_us
from gemmdb.errors import TableError
from gemmdb.generators.files.pack import pack
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import Toolchain
from gemmdb.lookup.acceptance.near import near
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.neighbours import MOST_NEIGHBOURS, MOST_RATIOS, metric
from gemmdb.settings import Policy
from gemmdb.table.admission import shipped_check
from gemmdb.table.measurement import Measurement, Protocol, Status, Times
from gemmdb.table.reader import Table
from gemmdb.table.record import Record
from gemmdb.table.verdict import Verdict
from gemmdb.table.writer import Store

SLICE = 4096
SLOW_S = 4.0
"""What a file may take: two statements until their deadline."""
AROUND = 2 * MOST_NEIGHBOURS
"""How many problems nearby are read: all that a prediction uses."""
ALL = 100_000
"""So many problems nearby are listed that a missing one lets no other move up."""
STRICT = Policy(on_miss="error", near_loss=10.0)
Pair = tuple[Problem, Device]
Answer = frozenset[str]
FAULT: Answer = frozenset(["TableError"])
KINDS = ("right", "refused", "part", "missing", "wrong", "slow", "other error")


@dataclass(frozen=True)
class Subject:
    """A table to damage, whole: its bytes, what to ask, and what it answers. `around`: the problems that are nearest to
    each one."""

    name: str
    whole: bytes
    immutable: bool
    pairs: Sequence[Pair]
    around: Sequence[Sequence[Problem]]
    answers: Sequence[Sequence[Answer]]

    @classmethod
    def of(cls, name: str, path: Path, immutable: bool, most: int) -> Subject:
        """The table at `path`, asked about at most `most` problems."""
        with Table.open(path, immutable=immutable) as table:
            found = sorted(table.pairs(), key=lambda pair: pair[0].text)
            pairs = found[:: max(1, len(found) // most)]
            around = [[one for _, one in near_by(table, *pair)[:AROUND]] for pair in pairs]
            return cls(name, path.read_bytes(), immutable, pairs, around, list(answers(table, pairs, around)))


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--flips", type=int, default=10_000, help="damaged files, of all tables together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "hostile" / "damage.json")


def main(options: argparse.Namespace) -> None:
    """Damage, ask, write and print. Ends with 1 if any answer was wrong."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {one.name: campaign(one, folder, options.flips // 4, options.seed) for one in subjects(folder)}
    document = {
        "what": "files by outcome; every outcome but `wrong`, `slow` and `other error` is allowed",
        "date": now(), "seed": options.seed, "seconds": round(time.monotonic() - start), "tables": found,
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))
    bad = sum(part[kind] for table in found.values() for part in (table["cuts"], table["flips"])
              for kind in ("wrong", "slow", "other error"))  # fmt: skip
    raise SystemExit(bool(bad))


def subjects(folder: Path, most: int = 12) -> Iterator[Subject]:
    """The tables that are damaged."""
    plain = small(folder / "plain.db")
    yield Subject.of("measurements", plain, False, most)
    pack(plain, folder / "packed.db")
    yield Subject.of("packed", folder / "packed.db", False, most)
    yield Subject.of("package", folder / "packed.db", True, most)
    shutil.copy(ROOT / "tables" / trust.MANIFEST, folder)
    path = Path(shutil.copy(ROOT / "tables" / "sm89-nvidia-l4.db", folder))
    yield Subject.of("shipped", path, True, most)


def small(path: Path) -> Path:
    """A table of invented times of some problems on a GPU."""
    gpu = Device("cuda", "sm90", "NVIDIA H200", 132, 140)
    made_by, protocol = Toolchain(torch="2.13.0", triton="3.6.0", cuda="13.0"), Protocol("graph", "cold", 20, 30)
    chance = random.Random(5)
    configs = [
        Config.of("triton", "inductor_mm", block_m=m, block_n=n, block_k=64, group_m=8, warps=4, stages=stages)
        for m in (16, 32, 64) for n in (64, 128) for stages in (3, 4)
    ]  # fmt: skip
    with Store.open(path) as store:
        for m in (16, 48, 64, 200, 256, 1024):
            for n, k in ((4096, 4096), (1024, 4096), (4096, 11008), (6144, 4096), (2048, 2048)):
                problem = Problem.gemm("mm", m=m, n=n, k=k)
                us = 5 + 1.5 * roofline_us(problem, gpu)
                ratios = {ATEN: 1.0, **{config: chance.uniform(0.6, 1.5) for config in configs}}
                store.add(
                    Measurement(problem, config, gpu, protocol, made_by, "run", Status.OK,
                                Times(us * ratio, 0.995 * us * ratio, 1.005 * us * ratio, 30, us))
                    for config, ratio in ratios.items()
                )  # fmt: skip
        store.refresh()
    return path


def answers(table: Table, pairs: Sequence[Pair], around: Sequence[Sequence[Problem]]) -> Iterator[list[Answer]]:
    """What a table says of some problems and of those around them: for each question the set of facts, or FAULT. The
    last answer is that of rung `near`."""
    for (problem, device), others in zip(pairs, around, strict=True):
        found = [
            _asked(lambda p, d: _verdict(table.verdict(p, d)), problem, device),
            _asked(lambda p, d: frozenset(f"{far!r} {one.text}" for far, one in near_by(table, p, d)), problem, device),
        ]
        for one in dict.fromkeys((problem, *others)):
            found.append(_asked(lambda p, d: _record(table.record(p, d)), one, device))
            found.append(_asked(lambda p, d: frozenset(config.text for config in table.barred(p, d)), one, device))
        yield [*found, _asked(lambda p, d: _near(table, p, d), problem, device)]


def near_by(table: Table, problem: Problem, device: Device) -> list[tuple[float, Problem]]:
    """The problems near a problem beside `problem`, with their distances, nearest first."""
    return table.distances(beside(problem), device, "cold", ALL, MOST_RATIOS, metric(device.kind))


def beside(problem: Problem) -> Problem:
    """A problem that no table has measured."""
    return problem.resized(problem.m + problem.m // 4 + 3, problem.n, problem.k)


def _asked(question: Callable[[Problem, Device], Answer], problem: Problem, device: Device) -> Answer:
    try:
        return question(problem, device)
    except TableError:
        return FAULT


def campaign(subject: Subject, folder: Path, flips: int, seed: int) -> dict[str, dict[str, int]]:
    """How many files of one table had which outcome, cut off and with flipped bits."""
    path = folder / "sm89-nvidia-l4.db"
    sizes = range(0, len(subject.whole), SLICE)
    cuts = Counter(outcome(subject, path, subject.whole[:size]) for size in sizes)
    torn = Counter(outcome(subject, path, flipped(subject.whole, seed * 10**6 + number)) for number in range(flips))
    return {"cuts": {kind: cuts[kind] for kind in KINDS}, "flips": {kind: torn[kind] for kind in KINDS}}


def flipped(whole: bytes, seed: int) -> bytes:
    """The bytes with one to eight bits flipped; every other file in its first pages, which all reads go through."""
    chance = random.Random(seed)
    torn = bytearray(whole)
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        torn[chance.randrange(min(len(torn), 65536) if seed % 2 else len(torn))] ^= 1 << chance.randrange(8)
    return bytes(torn)


def outcome(subject: Subject, path: Path, content: bytes) -> str:
    """What became of one damaged file: one of KINDS."""
    path.unlink(missing_ok=True)  # Another file: one that took too long is not read again.
    path.write_bytes(content)
    start = time.monotonic()
    try:
        check = shipped_check(path) if subject.name == "shipped" else None
        with Table.open(path, immutable=subject.immutable, check=check) as table:
            found = list(answers(table, subject.pairs, subject.around))
    except TableError:
        return "refused"
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return "other error"
    if time.monotonic() - start > SLOW_S:
        return "slow"
    kinds = {_compared(one, right) for one, right in zip(found, subject.answers, strict=True)}
    return next(kind for kind in ("wrong", "missing", "part", "right") if kind in kinds)


def _compared(found: Sequence[Answer], right: Sequence[Answer]) -> str:
    """What became of the answers about one problem."""
    *facts, predicted = zip(found, right, strict=True)
    known = [(one, whole) for one, whole in facts if one != FAULT]
    if any(not one <= whole for one, whole in known):
        return "wrong"
    if any(one != whole for one, whole in known):
        return "missing"
    if FAULT in found:
        return "part"
    return "right" if predicted[0] == predicted[1] else "wrong"


def _verdict(found: Verdict | None) -> Answer:
    if found is None:
        return frozenset()
    texts = (found.problem.text, found.device.text, found.protocol.text, found.toolchain.text)
    numbers = (found.ratio, found.spread, found.aten_us, found.runs)
    return frozenset([repr((texts, [config.text for config in found.ties], numbers))])


def _near(table: Table, problem: Problem, device: Device) -> Answer:
    """What rung `near` answers for a problem beside this one, and from what."""
    hit = near(Ask(Query(beside(problem), device), (table,), STRICT, None)).hit
    if hit is None:
        return frozenset(["none"])
    evidence = {name: value for name, value in hit.evidence.items() if name != "neighbours"}
    used = [(one["problem"], one["distance"], one["aten_us"]) for one in hit.evidence["neighbours"]]
    return frozenset([repr((hit.config.text, hit.expected_us, hit.speedup, used, sorted(evidence.items())))])


def _record(found: Record | None) -> Answer:
    """Each time and each failure. ATen's own time counts where it is known."""
    if found is None:
        return frozenset()
    times = [
        repr((group.l2, group.modelled, group.klass, one.config.text, one.code, one.width, one.flags, one.expected))
        for group in found.groups for one in group.times
    ]  # fmt: skip
    aten = [repr((group.l2, group.klass, group.aten_us)) for group in found.groups if group.aten_us]
    failed = [repr((config.text, status)) for config, status in found.failed]
    return frozenset([*times, *aten, *failed])
