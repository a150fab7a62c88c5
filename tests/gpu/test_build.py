"""`build` on a GPU, from shapes to an answer: broken candidates, caches, a second build, and timing a table again."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import gemmdb
from gemmdb.generators import effort
from gemmdb.generators.backend import Candidate
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.measure.cuda.render import plan
from gemmdb.generators.measure.remeasure import remeasure
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Status
from gemmdb.table.reader import Table

pytestmark = pytest.mark.timeout(240)


def tile(block_k: int, **changes: str | int) -> Config:
    base: dict[str, str | int] = {
        "block_m": 16, "block_n": 64, "block_k": block_k, "group_m": 8, "split_k": 1, "reduce": "none", "swap": 0,
        "load": "pointer", "dequant": "cast", "warps": 4, "stages": 3,
    }  # fmt: skip
    return Config.of("triton", "tile", **{**base, **changes})


SMALL, AFTER = Problem.gemm("mm", m=16, n=512, k=512), Problem.gemm("mm", m=16, n=1024, k=512)
LARGE = Problem.gemm("mm", m=32768, n=32768, k=512)
GOOD = tile(64)
HUNGRY = tile(64, split_k=64, reduce="kernel")
"""Its partial sums of LARGE take 256 GiB."""
BROKEN = {
    Status.WRONG: (
        tile(128), "tl.store(out + tl.program_id(0) * 64 + tl.arange(0, 64), tl.zeros((64,), dtype=tl.bfloat16))",
    ),
    Status.ERROR: (tile(256), "tl.store(out, no_such_name)"),
    # Far outside of every allocation.
    Status.CRASH: (tile(32), "tl.store(out + (tl.program_id(0).to(tl.int64) + 1) * 1099511627776, 1.0)"),
    # Some minutes of dependent loads: it ends by itself should the process outlive its time limit.
    Status.TIMEOUT: (tile(512), """seen = tl.load(A, volatile=True).to(tl.float32)
    for _ in range(1000000000):
        seen += tl.load(A, volatile=True).to(tl.float32)
    tl.store(out, seen)"""),
}  # fmt: skip


class Space:
    """The same configs for every problem; the one that runs out of memory for the large one alone."""

    def candidates(self, problem: Problem, device: Device, effort: effort.Effort) -> Sequence[Candidate]:
        broken = [HUNGRY] if problem == LARGE else [config for config, _ in BROKEN.values()] if problem == SMALL else []
        return [Candidate(ATEN), Candidate(GOOD), *map(Candidate, broken)]


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """The real backend with a few configs, broken kernels in the place of some, and short time limits."""
    from gemmdb.generators.measure.cuda.backend import CudaBackend

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    (tmp_path / "triton" / "gemmdb").mkdir(parents=True)
    for config, body in BROKEN.values():
        unit = plan(SMALL, config).launches[0].unit
        head = unit.source.partition("#constants#")[0].partition("\n    ")[0]
        (tmp_path / "triton" / "gemmdb" / f"gemmdb_{unit.key}.py").write_text(f"{head}\n    {body}\n")
    short = replace(effort.named("quick", "cuda"), samples=15, states=("cold", "hot"), measure_s=20.0, rivals=0)
    short = replace(short, proposals=0, neighbours=0)
    monkeypatch.setitem(effort.EFFORTS, ("gpu", "quick"), short)
    made = CudaBackend()
    made.space = Space()
    yield made
    made.close()


def request(tmp_path: Path, *problems: Problem) -> BuildRequest:
    shapes = tmp_path / "shapes.jsonl"
    shapes.write_text("".join(f'{{"problem": "{problem.text}"}}\n' for problem in problems))
    return BuildRequest(shapes=str(shapes), effort="quick", out=tmp_path / "gpu.db")


def statuses(path: Path, problem: Problem, backend) -> dict[Config, set[Status]]:
    with Table.open(path) as table:
        rows = [row for row in table.rows(problem, backend.device) if row.protocol.l2 == "cold"]
        return {row.config: {other.status for other in rows if other.config == row.config} for row in rows}


def test_broken_candidates_cost_a_row_each_and_the_build_goes_on(tmp_path, backend, monkeypatch):
    monkeypatch.setitem(effort.EFFORTS, ("gpu", "quick"), replace(effort.named("quick", "cuda"), states=("cold",)))
    report = build(request(tmp_path, SMALL, LARGE, AFTER), backend=backend)
    assert (report.measured, report.left) == (3, 0)
    right = {Status.OK}
    small = {config: {status} for status, (config, _) in BROKEN.items()}
    assert statuses(report.out, SMALL, backend) == {ATEN: right, GOOD: right, **small}
    assert statuses(report.out, LARGE, backend) == {ATEN: right, GOOD: right, HUNGRY: {Status.OOM}}
    assert statuses(report.out, AFTER, backend) == {ATEN: right, GOOD: right}
    with Table.open(report.out) as table:
        assert table.barred(SMALL, backend.device) == {BROKEN[Status.WRONG][0], BROKEN[Status.CRASH][0]}


def test_both_cache_states_are_measured_and_looked_up(kit, tmp_path, backend, monkeypatch):
    report = build(request(tmp_path, AFTER), backend=backend)
    assert report.busy_share is not None
    assert 0 < report.busy_share < 1
    monkeypatch.setenv("GEMMDB_TABLES", str(report.out))
    expected = {}
    for l2 in ("cold", "hot"):
        hit = gemmdb.lookup(Problem.gemm("mm", m=16, n=1024, k=512), backend.device.sku, l2)
        assert hit is not None
        assert hit.rung == "exact"
        assert f"l2={l2}" in str(hit.evidence["protocol"])
        expected[l2] = hit.evidence["aten_us"]
    # Where other tests use the GPU meanwhile, they take turns with these kernels, of 5 us each.
    assert expected["hot"] < expected["cold"] or not kit.alone


def test_a_table_is_timed_again(kit, tmp_path, backend):
    build(request(tmp_path, AFTER), backend=backend)
    # Where other tests use the GPU meanwhile, they take turns with these kernels, of 5 us each.
    again = remeasure(tmp_path / "gpu.db", 2, tolerance=0.2 if kit.alone else 1.0)
    assert (again.problems, again.failed) == (2, 0)
    assert again.timed >= 2
    assert again.within == again.rows
