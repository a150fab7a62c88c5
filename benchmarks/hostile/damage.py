"""Tables that are cut off at every 4 KiB, and tables with flipped bits: what lookups answer.

    python -m benchmarks.hostile damage [--flips 10000] [--seed 1] [--out benchmarks/results/hostile/damage.json]

Each damaged file is opened and asked about some of its problems: verdicts, records and neighbours. Every answer is
compared with that of the whole file. `right`: all are the same; `refused`: a TableError when it is opened; `part`:
some answers are a TableError, the others are the same; `missing`: a row is not found, as if it had not been measured,
which damage to SQLite's own structures can do to a file that has no digest; `wrong`: another answer. A shipped table
is also opened as the Catalog does, by its digest in the manifest: there no damage goes unnoticed. The tables are a
shipped one, a small one that is packed anew (with checksums), and the table of measurements that it was packed from.
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
from typing import Any

from benchmarks.common import ROOT, now
from gemmdb.errors import TableError
from gemmdb.generators.files.pack import pack
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.table.measurement import Measurement, Protocol, Status, Times
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

SLICE = 4096
SLOW_S = 4.0
"""What a file may take: two statements until their deadline."""
KINDS = ("right", "refused", "part", "missing", "wrong", "slow", "other error")


@dataclass(frozen=True)
class Subject:
    """A table to damage, whole: its bytes, what to ask, and what it answers."""

    name: str
    whole: bytes
    immutable: bool
    pairs: Sequence[tuple[Problem, Device]]
    answers: Sequence[str]

    @classmethod
    def of(cls, name: str, path: Path, immutable: bool, most: int) -> Subject:
        """The table at `path`, asked about at most `most` problems."""
        with Table.open(path, immutable=immutable) as table:
            found = sorted(table.pairs(), key=lambda pair: pair[0].text)
            pairs = found[:: max(1, len(found) // most)]
            return cls(name, path.read_bytes(), immutable, pairs, list(answers(table, pairs)))


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
        found = {one.name: campaign(one, folder, options.flips // 3, options.seed) for one in subjects(folder)}
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
    shutil.copy(ROOT / "tables" / "sm89-nvidia-l4.db", folder / "shipped.db")
    yield Subject.of("shipped", folder / "shipped.db", True, most)


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
                ratios = {ATEN: 1.0, **{config: chance.uniform(0.6, 1.5) for config in configs}}
                store.add(
                    Measurement(problem, config, gpu, protocol, made_by, "run", Status.OK,
                                Times(20 * ratio, 19.9 * ratio, 20.1 * ratio, 30, 20.0))
                    for config, ratio in ratios.items()
                )  # fmt: skip
        store.refresh()
    return path


def answers(table: Table, pairs: Sequence[tuple[Problem, Device]]) -> Iterator[str]:
    """What a table says of some problems, a text for each question."""
    questions: tuple[Callable[[Problem, Device], Any], ...] = (
        table.verdict, table.record, table.barred, lambda p, d: [one.text for one in table.neighbours(p, d, limit=8)],
    )  # fmt: skip
    for problem, device in pairs:
        for question in questions:
            try:
                yield repr(question(problem, device))
            except TableError as error:
                assert "\n" not in str(error), error
                yield "TableError"


def campaign(subject: Subject, folder: Path, flips: int, seed: int) -> dict[str, dict[str, int]]:
    """How many files of one table had which outcome, cut off and with flipped bits."""
    path = folder / f"damaged-{subject.name}.db"
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
        with Table.open(path, immutable=subject.immutable) as table:
            found = list(answers(table, subject.pairs))
    except TableError as error:
        assert "\n" not in str(error), error
        return "refused"
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return "other error"
    if time.monotonic() - start > SLOW_S:
        return "slow"
    pairs = list(zip(found, subject.answers, strict=True))
    if any(_other(one, right) for one, right in pairs):
        return "wrong"
    if any(one not in (right, "TableError") for one, right in pairs):
        return "missing"
    return "part" if "TableError" in found else "right"


def _other(found: str, right: str) -> bool:
    """Whether an answer is another one, and not merely less."""
    if found in (right, "TableError", "None", "frozenset()"):
        return False
    if right.startswith("["):  # Neighbours: fewer of them, or others in place of those that are missing.
        return False
    return True
