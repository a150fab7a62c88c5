"""CUTLASS from a minimum size on (row S16), stream-K candidates (row S17), allow and deny lists (row S21); see
`docs/contributing/origins.md`."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.devices import H200

from gemmdb.errors import InputError
from gemmdb.generators.backend import Candidate, Job
from gemmdb.generators.build.build import select
from gemmdb.generators.effort import named
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import Toolchain
from gemmdb.settings import Policy
from gemmdb.table.measurement import Measurement, Protocol, Status, Times
from gemmdb.table.writer import Store

PROTOCOL = Protocol("graph", "cold", 10, 25)
PINGPONG = Config.of(
    "cutlass", "gemm", tile_m=64, tile_n=128, tile_k=64, cluster_m=1, cluster_n=1, schedule="pingpong", split_k=1,
    swizzle=1, raster="auto", swap=0,
)  # fmt: skip
COOPERATIVE = Config.of("cutlass", "gemm", **PINGPONG.values | {"schedule": "cooperative", "tile_m": 128})
PROBLEM = Problem.gemm("mm", m=256, n=512, k=512)


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    toolchain = Toolchain(torch="2.11.0", triton="3.6.0", cuda="13.0")
    times = {ATEN: 100.0, PINGPONG: 50.0, COOPERATIVE: 60.0}
    with Store.open(tmp_path / "table.db") as store:
        store.add(
            Measurement(PROBLEM, c, H200, PROTOCOL, toolchain, "run", Status.OK, Times(us, us, us, 25, 100.0))
            for c, us in times.items()
        )
        store.refresh()
    return tmp_path / "table.db"


def served(path: Path, **policy: object) -> Config:
    query = Query(PROBLEM, H200, {})
    policy = {"compile_cost": 10, **policy}
    found = TableSession(Policy(**policy), [path]).find(query)  # type: ignore[arg-type]
    assert found is not None
    return found.config


def test_s16_cutlass_begins_at_a_size(measured: Path) -> None:
    size = PROBLEM.m * PROBLEM.n * PROBLEM.k
    assert served(measured) == PINGPONG
    assert served(measured, cutlass_size=size) == PINGPONG
    assert served(measured, cutlass_size=size + 1) == ATEN


@pytest.mark.parametrize(
    ("m", "k", "n"), [(128, 16, 128), (1024, 256, 1024), (16384, 1024, 16384), (16384, 1408, 16384)]
)
def test_s17_stream_k_configs_are_candidates(m: int, k: int, n: int) -> None:
    problem = Problem.gemm("mm", m=m, n=n, k=k, dtype="fp16", layout="nn")
    tried = [candidate.config for candidate in CudaSpace().candidates(problem, H200, named("full", "cuda"))]
    streaming = [c for c in tried if c.backend == "cutlass" and c.values["split_k"] == 0]
    assert streaming
    assert all(c.values["schedule"] == "cooperative" for c in streaming)
    job = Job(problem, PROTOCOL, tuple(map(Candidate, tried)))
    (only,) = select([job], allow="cutlass:.* split_k=0 ", deny="")
    assert [candidate.config for candidate in only.candidates] == [ATEN, *streaming]


def test_s21_allow_and_deny_in_a_lookup(measured: Path) -> None:
    assert served(measured) == PINGPONG
    assert served(measured, deny="pingpong") == COOPERATIVE
    assert served(measured, allow="schedule=coop") == COOPERATIVE
    assert served(measured, deny="cutlass") == ATEN
    assert served(measured, allow="pingpong", deny="tile_m=64") == ATEN


@pytest.mark.parametrize(
    ("allow", "deny", "left"),
    [
        ("", "", [ATEN, PINGPONG, COOPERATIVE]),
        ("", "pingpong", [ATEN, COOPERATIVE]),
        ("pingpong|nothing", "", [ATEN, PINGPONG]),
        ("cutlass", "tile_m=(64|128)", [ATEN]),
        ("", "aten", [ATEN, PINGPONG, COOPERATIVE]),
    ],
)
def test_s21_allow_and_deny_in_a_build(allow: str, deny: str, left: list[Config]) -> None:
    job = Job(PROBLEM, PROTOCOL, tuple(map(Candidate, (ATEN, PINGPONG, COOPERATIVE))))
    (found,) = select([job], allow, deny)
    assert [candidate.config for candidate in found.candidates] == left


def test_s21_what_is_no_regular_expression_is_refused() -> None:
    with pytest.raises(InputError, match=r"--deny '\(': not a regular expression"):
        select([], "", "(")
