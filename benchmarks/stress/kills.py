"""Kill builds with SIGKILL at random moments, and compare what they leave with what an undisturbed build gives.

    python -m benchmarks.stress kills [--kills 120] [--seed 1]

A build of a few GEMMs for this CPU runs in a process of its own. Again and again, after a random time, one of its
processes is killed: the build itself, the process that forks its workers, a worker, or a compiler. When the build is
killed, all its processes must end within ten seconds, and the table must be sound; then the same command goes on. When
a build comes to its end, it is run once more, for what was killed while it was timed. Then its rows are compared with
those of the undisturbed one: the same configs of the same problems, and a time for each that has one there. A config
whose process was killed counts as out of memory, since only the kernel kills like that; it is tried twice. Writes one
line of JSON per round. `cluster-kills` does the same to builds over a Ray cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, now, write_shapes
from benchmarks.stress import victims
from benchmarks.stress.contents import Contents, contents, differences, failures
from benchmarks.stress.victims import Victim
from gemmdb.generators.files.verify import verify
from gemmdb.key.problem import Problem
from gemmdb.table.writer import Store

SIZES = (1, 4, 16, 64)
LIMIT_S = 10.0
"""How long processes may outlive their build."""
WEIGHTS = {"driver": 0.35, "worker": 0.4, "compiler": 0.3, "server": 0.1, "node": 0.15}
"""How likely each kind of process is to be killed, relative to each other."""
OUT = ROOT / "benchmarks" / "results" / "faults"


@dataclass
class Round:
    """Kills until a build comes to its end. `killed`: how many processes of each kind; `orphans`: how many builds left
    processes that ran for longer than LIMIT_S; `longest_s`: the longest that any ran on; `faults`: what was wrong."""

    killed: Counter[str] = field(default_factory=Counter)
    builds: int = 0
    orphans: int = 0
    longest_s: float = 0.0
    faults: list[str] = field(default_factory=list)


@dataclass
class Campaign:
    """Builds of `shapes` in `folder` that are killed. `most_s`: the longest pause between two kills. `more`: further
    words of the command."""

    folder: Path
    shapes: Path
    most_s: float
    chance: random.Random
    driver: tuple[str, ...] = (sys.executable, "-m", "benchmarks.stress.driver")
    more: tuple[str, ...] = ()

    def start(self, out: Path, mark: str) -> subprocess.Popen[bytes]:
        """A build into `out`, whose processes have the mark."""
        environment = {
            **os.environ, victims.MARK: mark, "TMPDIR": str(self.folder), "PYTHONPATH": str(ROOT),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "cache"),
        }  # fmt: skip
        command = [*self.driver, str(self.shapes), str(out), *self.more]
        with self.log.open("wb") as log:
            return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=log)

    def running(self, mark: str) -> list[Victim]:
        """The processes that work for the build with the mark."""
        return victims.running(mark)

    def kill(self, victim: Victim) -> bool:
        """Kill one of them. False if it ended before."""
        return victims.kill(victim)

    @property
    def log(self) -> Path:
        """What the last build said."""
        return self.folder / "log.txt"

    def undisturbed(self, out: Path) -> Contents:
        """What a build gives that nobody kills."""
        if self.start(out, "undisturbed").wait() != 0:
            raise SystemExit("the undisturbed build failed")
        return contents(out)

    def round(self, out: Path, most: int) -> Round:
        """Kill builds into `out`, at most so often, until one comes to its end."""
        done = Round()
        while True:
            done.builds += 1
            mark = f"{out.name}-{done.builds}"
            process = self.start(out, mark)
            ended = self._disturb(process, mark, done, most)
            after = victims.gone_after(mark, LIMIT_S, self.running)
            done.orphans += after is None
            done.longest_s = max(done.longest_s, after or 0.0)
            for left in self.running(mark):
                done.faults.append(f"a {left.kind} still ran after {LIMIT_S:g} s")
                self.kill(left)
            done.faults += unsound(out)
            if ended:
                self.start(out, "again").wait()
                return done

    def _disturb(self, process: subprocess.Popen[bytes], mark: str, done: Round, most: int) -> bool:
        """Kill processes of a build until it ends. Whether it came to its own end."""
        while True:
            try:
                pause = self.chance.uniform(0.05, self.most_s) if done.killed.total() < most else None
                code = process.wait(pause)
                if code not in (0, -9):
                    done.faults.append(f"a build ended with code {code}: {self.log.read_text()[-300:]}")
                return code != -9
            except subprocess.TimeoutExpired:
                victim = self._choose(process.pid, self.running(mark))
                done.killed[victim.kind] += self.kill(victim)

    def _choose(self, driver: int, running: list[Victim]) -> Victim:
        by_kind = {victim.kind: victim for victim in self.chance.sample(running, len(running)) if victim.pid != driver}
        by_kind["driver"] = Victim(driver, "driver")
        kinds = sorted(by_kind)
        return by_kind[self.chance.choices(kinds, [WEIGHTS.get(kind, 0.1) for kind in kinds])[0]]


def unsound(path: Path) -> list[str]:
    """What is wrong with a table after its writer was killed, and what the writer left is undone."""
    if not path.exists():
        return []
    with Store.open(path):
        pass
    return [str(finding) for finding in verify(path) if finding.check != "pending"]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--kills", type=int, default=120, help="how many processes to kill")
    parser.add_argument("--seed", type=int, default=1, help="of the moments and the victims")
    parser.add_argument("--most", type=float, default=9.0, metavar="S", help="the longest pause between two kills")
    parser.add_argument("--out", type=Path, default=OUT / "kills.jsonl", help="the file of results")


def main(options: argparse.Namespace) -> None:
    """Kill, compare, and write."""
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    try:
        shapes = write_shapes(folder / "shapes.jsonl", problems())
        campaign = Campaign(folder, shapes, options.most, random.Random(options.seed))
        run(campaign, campaign.undisturbed(folder / "undisturbed.db"), options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(campaign: Campaign, wanted: Contents, options: argparse.Namespace) -> None:
    """Rounds until enough processes are killed."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w") as file:
        left = options.kills
        while left > 0:
            start, table = time.monotonic(), campaign.folder / f"round-{left}.db"
            shutil.rmtree(campaign.folder / "cache", ignore_errors=True)
            done = campaign.round(table, left)
            left -= done.killed.total()
            if not done.killed and done.faults:
                raise SystemExit(f"a build fails that nobody kills: {done.faults}")
            line = result(done, wanted, table) | {"seconds": round(time.monotonic() - start, 1)}
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(json.dumps(line), flush=True)


def problems() -> list[Problem]:
    """A few small GEMMs with constant weights."""
    return [Problem.gemm("mm", m=m, n=64, k=64, dtype="fp32", constant_weight=True) for m in SIZES]


def result(done: Round, wanted: Contents, table: Path) -> dict[str, Any]:
    """The line of a round: the kills, the faults, and how its rows differ from those of the undisturbed build."""
    return {
        "date": now(), "killed": dict(done.killed), "builds": done.builds, "orphans": done.orphans,
        "longest_s": round(done.longest_s, 2), "faults": done.faults, "pairs": len(wanted),
        **differences(wanted, contents(table)), "failures": failures(table),
    }  # fmt: skip
