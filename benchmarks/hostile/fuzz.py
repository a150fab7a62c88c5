"""A million files and texts that are almost right: all are read, or refused in one line that names the file.

    python -m benchmarks.hostile fuzz [--cases 1000000] [--seed 1] [--out benchmarks/results/hostile/fuzz.json]
    python -m benchmarks.hostile fuzz --atheris TARGET --cases 100000

Cases are mutations of good ones: bytes that are flipped, cut out, repeated or replaced, among others by numbers,
brackets and controls that parsers trip over. Targets are the canonical texts (what is read is written as the same
text), the files of other programs, exported rows, workloads, manifests, files of digests, archives of kernels, and
tables of which a value is changed. A case that raises anything but GemmdbError, or takes more than SLOW_S seconds, is
printed and counted; the process then ends with 1. With --atheris, atheris (`pip install atheris`) chooses the mutations
by the code that they reach, for one target.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.common import ROOT, now
from benchmarks.hostile.targets import Broken, Target, targets

SLOW_S, HANG_S = 5.0, 60
"""Seconds after which a case counts as slow, and after which it is ended."""
TOKENS = [
    *(c.encode() for c in "{}[]\",:=%~ \n\t\r"), b"null", b"true", b"1e999", b"-1", b"-0", b"NaN", b"Infinity", b"0x10",
    b"9" * 30, b"9" * 5000, b"\\u0000", b"\\ud800", b"\x00", b"\xff", b"\xc3\x28", b"[" * 3000, b"1_0", b"%00", b"%0A",
    "\u0661\u2028\u202e".encode(), b"../../x", b"$(id)", b"';--", b"<script>", b"{{7*7}}", b"%s%n", b"\x1b[2J",
    (2**63).to_bytes(9, "big"), b"1e-320", b"block_m", b"a" * 3000,
]  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--atheris", metavar="TARGET", help="fuzz one target by coverage")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "hostile" / "fuzz.json")


def main(options: argparse.Namespace) -> None:
    """Run all targets, write and print the result."""
    known = targets()
    if options.atheris:
        guided(next(one for one in known if one.name == options.atheris), options.cases)
        return
    total = sum(one.share for one in known)
    found = {one.name: campaign(one, round(options.cases * one.share / total) + 1, options.seed) for one in known}
    document = {
        "what": "cases by target, and what was wrong with some of them", "date": now(), "seed": options.seed,
        "cases": sum(one["cases"] for one in found.values()), "targets": found,
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))
    raise SystemExit(any(one["faults"] for one in found.values()))


def campaign(target: Target, cases: int, seed: int) -> dict[str, Any]:
    """What became of the cases of one target."""
    start, chance = time.monotonic(), random.Random(f"{target.name} {seed}")
    faults: Counter[str] = Counter()
    slowest = 0.0
    for number in range(cases):
        data = mutated(chance.choice(target.seeds), chance) if number >= len(target.seeds) else target.seeds[number]
        begun = time.monotonic()
        fault = checked(target.check, data)
        took = time.monotonic() - begun
        slowest = max(slowest, took)
        if fault is None and took > SLOW_S:
            fault = "slow"
        if fault:
            faults[fault] += 1
            print(f"{target.name} {number}: {fault}: {data[:300]!r}", file=sys.stderr, flush=True)
    seconds = round(time.monotonic() - start, 1)
    return {"cases": cases, "faults": dict(faults), "seconds": seconds, "slowest_s": round(slowest, 3)}


def checked(check: Callable[[bytes], None], data: bytes) -> str | None:
    """What is wrong with a case, None for nothing."""
    signal.signal(signal.SIGALRM, _hang)
    signal.alarm(HANG_S)
    try:
        check(data)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:120]}"
    finally:
        signal.alarm(0)
    return None


def _hang(number: int, frame: FrameType | None) -> None:
    raise Broken("it hangs")


def mutated(seed: bytes, chance: random.Random) -> bytes:
    """A good case, changed in one to six places."""
    data = bytearray(seed)
    for _ in range(chance.choice((1, 1, 2, 3, 6))):
        place = chance.randrange(len(data) + 1)
        cut = chance.choice((0, 0, 1, 2, 5, 20))
        data[place : place + cut] = _new(data, chance)
    return bytes(data)


def _new(data: Sequence[int], chance: random.Random) -> bytes:
    what = chance.randrange(5)
    if what == 0:
        return b""
    if what == 1:
        return bytes([chance.randrange(256)])
    if what == 2:
        begin = chance.randrange(len(data) + 1)  # Of itself.
        return bytes(data[begin : begin + chance.choice((1, 8, 40))])
    if what == 3:
        return str(chance.choice((0, 1, 2**31, 2**63, -(2**63) - 1, 10**25, chance.randrange(5000)))).encode()
    return chance.choice(TOKENS)


def guided(target: Target, cases: int) -> None:
    """Let atheris choose the cases of one target; ends the process, with the failing case on stderr if there is one."""
    import atheris

    atheris.instrument_all()
    corpus = ROOT / "build" / "fuzz" / target.name.replace(" ", "-")
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed{number}").write_bytes(seed)
    atheris.Setup([sys.argv[0], f"-runs={cases}", "-timeout=60", "-max_len=4096", str(corpus)], target.check)
    atheris.Fuzz()
