"""What the H200 scripts share: where results are, the groups of problems that figures are given for, and means."""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gemmdb.errors import GemmdbError
from gemmdb.key.problem import Problem

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "h200"
SHIPPED = ROOT / "tables" / "sm90-nvidia-h200.db"
PARTS, BUILD, PEERS = "rows-*.jsonl.xz", "build.json", "peers.jsonl"
"""What a folder of results holds: archives of all rows, the reports of its builds, the comparison with peers."""
FLOOR_BYTES = 48e6
"""From this weight on, a mixed_mm is held against a streaming read of it."""

Member = Callable[[Problem], bool]


def folders() -> list[Path]:
    """The folders of results with rows, in the order of their names, which are dates. Raises SystemExit without one."""
    found = sorted({path.parent for path in RESULTS.glob(f"20*/{PARTS}")})
    if not found:
        raise SystemExit(f"no folder of {RESULTS} holds {PARTS}")
    return found


def newest() -> Path:
    """The last of `folders`: it holds all rows of its protocol that there were."""
    return folders()[-1]


def parts(folder: Path) -> list[Path]:
    """The archives of a folder. Raises SystemExit when there are none."""
    found = sorted(folder.glob(PARTS))
    if not found:
        raise SystemExit(f"{folder} holds no {PARTS}")
    return found


def builds(folder: Path | None) -> list[dict[str, Any]]:
    """What the builds behind a folder's rows did and cost; empty where nothing says so."""
    path = folder / BUILD if folder else None
    return list(json.loads(path.read_text())) if path and path.exists() else []


def of(*ops: str, most: float = math.inf, least: int = 0, fusion: str | None = None) -> Member:
    """Whether a problem has one of the ops, and M from `least` to `most`."""
    return lambda p: p.op in ops and least <= p.m <= most and fusion in (None, p.fusion)


def streamed(problem: Problem) -> bool:
    """Whether a problem's time is held against a streaming read of its weight."""
    return problem.op == "mixed_mm" and problem.m <= 16 and problem.n * problem.k >= FLOOR_BYTES


FIGURES: tuple[tuple[str, Member, float, float], ...] = (
    ("mixed_mm, M <= 64", of("mixed_mm", most=64), 3.0, 2.0),
    ("mixed_mm, all M", of("mixed_mm"), 1.8, 1.4),
    ("int_mm, with and without scale", of("int_mm"), 1.25, 1.20),
    ("mm, M <= 64", of("mm", most=64), 1.12, 1.10),
    ("mm and addmm, all M", of("mm", "addmm"), 1.04, 1.03),
)
"""Name, members, and the geometric means aimed at: against ATen, and against max-autotune's choice."""
STRATA: dict[str, Member] = {
    "mixed_mm, M <= 64": of("mixed_mm", most=64),
    "mixed_mm, M > 64": of("mixed_mm", least=65),
    "int_mm": of("int_mm"),
    "mm, M <= 64": of("mm", most=64),
    "addmm, M <= 64": of("addmm", most=64),
    "mm and addmm, M > 64": of("mm", "addmm", least=65),
}
"""The strata that the comparison with max-autotune draws equally many problems from; together they are everything."""
STREAMED = "mixed_mm, M <= 16, weight >= 48 MB"
"""Drawn besides, and held against a streaming read."""
STRATA_OF = {
    "mixed_mm, M <= 64": ("mixed_mm, M <= 64",),
    "mixed_mm, all M": ("mixed_mm, M <= 64", "mixed_mm, M > 64"),
    "int_mm, with and without scale": ("int_mm",),
    "mm, M <= 64": ("mm, M <= 64",),
    "mm and addmm, all M": ("mm, M <= 64", "addmm, M <= 64", "mm and addmm, M > 64"),
}
"""The strata that a figure is made of."""


def mean(values: Iterable[float]) -> float:
    """The geometric mean."""
    return math.exp(statistics.mean(math.log(value) for value in values))


def run(main: Callable[[], None]) -> None:
    """The main function of a script; bad input ends it with one line."""
    try:
        main()
    except GemmdbError as error:
        raise SystemExit(str(error)) from None
    except FileNotFoundError as error:
        raise SystemExit(f"{error.filename}: {error.strerror}") from None


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file; an interrupted last line is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def anywhere(found: Any) -> str:
    """One line of JSON, with paths inside this repository relative to it."""
    return json.dumps(found).replace(f"{ROOT}/", "")


def with_cuda_kernels(folder: Path, other: str | None) -> Path:
    """`folder` as a cache of Inductor's that holds nothing but the CUDA kernels of the `other` one, which nvcc takes a
    minute for. Files are linked where that can be."""
    folder.mkdir(parents=True, exist_ok=True)
    for source in Path(other).glob("*/*.cu") if other else ():
        for file in source.parent.glob(f"{source.stem}*"):
            target = folder / source.parent.name / file.name
            target.parent.mkdir(exist_ok=True)
            if not target.exists():
                try:
                    os.link(file, target)
                except OSError:
                    shutil.copy(file, target)
    return folder
