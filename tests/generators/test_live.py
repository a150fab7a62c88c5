"""Live tuning: which candidates, how many samples. The measuring itself: tests/inductor/test_live.py."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from gemmdb import hardware
from gemmdb.config import ATEN, Config
from gemmdb.generators import backends, live
from gemmdb.problem import Problem

CPU = hardware.cpu()
SMALL = Problem.gemm("mm", m=8, n=64, k=64, dtype="fp32", constant_weight=True)
LARGE = SMALL.resized(4096, 4096, 4096)


def job(problem, *proposals, budget_s=1.0):
    request = live.Request(problem, CPU, Path("unused.db"), proposals, budget_s)
    backend = backends.backend_for(CPU)
    made = live._job(request, backend)
    return made, live.within(request, backend, made)


def blocking(n):
    threads = {f"threads_{size}": 0 for size in "mnk"}
    return Config.of("cpp", "packed_gemm", **threads, blocks_m=n, blocks_n=1, blocks_k=1)


def test_at_most_four_proposals_are_tried_the_illegal_ones_left_out():
    legal, beyond = [blocking(n) for n in (1, 2, 3, 4, 5)], blocking(100)
    made, _ = job(SMALL, beyond, *legal)
    assert made.legal == (ATEN, *legal[:4])


def test_without_proposals_the_head_of_the_menu_is_tried():
    made, _ = job(SMALL)
    assert made.legal[0] == ATEN
    assert 1 < len(made.legal) <= 1 + live.PROPOSALS


def test_the_budget_limits_the_samples_and_leaves_the_protocol_alone():
    made, generous = job(SMALL, budget_s=100.0)
    same, short = job(SMALL, budget_s=0.01)
    assert made.protocol == same.protocol
    assert generous.samples == made.protocol.samples
    assert short.samples == live.FEWEST_SAMPLES
    assert job(LARGE)[1].samples < generous.samples
