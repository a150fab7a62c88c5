"""The fit of the ranking of cuBLASLt's algorithms: what it reads, and that it learns what is fast."""

from __future__ import annotations

import importlib.util
import json
import lzma
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemmdb.generators.fit import cublaslt as fitting
from gemmdb.generators.fit.cublaslt import Explored, fit, of_times, proven, read
from gemmdb.kernels.menus.cublaslt import Ranking, configs
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

H200 = Device("cuda", "sm90", "NVIDIA H200", 132, 140)
TIMED = {(10, 1, 2, 1): 0.9, (10, 1, 4, 1): 1.2, (10, 3, 2, 1): 1.1, (12, 0, 2, 1): 1.0, (12, 0, 4, 2): 0.909}
needs_sklearn = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="needs scikit-learn: pip install 'gemmdb[fit]'"
)


def explored(m: int, n: int, timed: dict[tuple[int, ...], float] = TIMED) -> Explored:
    found = of_times(Problem.gemm("mm", m=m, n=n, k=4096), 132, timed)
    assert found is not None
    return found


def test_algorithms_that_a_process_does_not_ask_for_are_left_out() -> None:
    others: dict[tuple[int, ...], float] = {(9999, 0, 2, 1): 0.1, (10, 0, 2, 1): 0.1, (12, 0, 1, 1): 0.1}
    found = explored(64, 4096, {**others, **TIMED})
    assert found.ratios.tolist() == list(TIMED.values())
    assert found.losses.min() == 0
    assert of_times(found.problem, 132, dict(list(TIMED.items())[:4])) is None


def test_a_line_of_an_exploration_is_read(tmp_path: Path) -> None:
    path = tmp_path / "explored.jsonl.xz"
    res: list[list[Any]] = [[*way, 10 * ratio] for way, ratio in TIMED.items()]
    line = {"p": [48, 1024, 2048, "nt"], "units": 132, "aten": [9.0, 10.0, 20.0], "res": [*res, [12, 0, 2, 1, None]]}
    with lzma.open(path, "wt") as file:
        file.write(f"{json.dumps(line)}\n{json.dumps({**line, 'res': res[:3]})}\n")
    (found,) = read([path])
    assert (found.problem.m, found.problem.n, found.problem.k, found.units) == (48, 1024, 2048, 132)
    assert found.ratios == pytest.approx(np.array(list(TIMED.values())))


def test_a_way_is_proven_if_it_was_close_to_the_best_several_times() -> None:
    """With the fewest and the most rows of those problems."""
    group = [explored(m, 4096) for m in (17, 40, 64, 200)]
    assert proven(group[:3]) == {}
    assert proven(group) == {"10": [[1, 2, 0, 17, 200]], "12": [[0, 4, 1, 17, 200]]}


@needs_sklearn
def test_the_trees_rank_what_was_fast_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ways are fast somewhere, and one cluster where N is small."""
    monkeypatch.setattr(fitting, "CLOSE", math.exp(2))
    group = []
    for n in range(1024, 9000, 128):
        fast = 2 if n < 4096 else 4
        timed = {(tile, custom, cluster, 1): 1.0 if cluster == fast else 1.3
                 for tile, custom in ((10, 1), (10, 3), (12, 0)) for cluster in (2, 4)}  # fmt: skip
        group.append(explored(64, n, timed))
    ranking = Ranking.parse(json.loads(json.dumps(fit(group))))
    for n, fast in ((2048, 2), (8192, 4)):
        assert configs(Problem.gemm("mm", m=64, n=n, k=4096), H200, ranking)[0].values["cluster"] == fast
