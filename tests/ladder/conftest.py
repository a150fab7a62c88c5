"""Real tables with invented times, and a catalog over them."""

import contextlib
import itertools
from types import SimpleNamespace

import pytest

from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import Toolchain
from gemmdb.settings import Settings
from gemmdb.table.catalog import Catalog
from gemmdb.table.measurement import Measurement, Protocol, Status, Times
from gemmdb.table.writer import Store

AUTO = dict.fromkeys(("threads_m", "threads_n", "threads_k", "blocks_m", "blocks_n", "blocks_k"), 0)
CPU = Device("cpu", "cpu", "Some CPU", 2)


def cpp(**params):
    return Config.of("cpp", "packed_gemm", **AUTO | params)


def problem(m=16, n=256, k=256, **rest):
    return Problem.gemm("mm", **{"dtype": "fp32", "constant_weight": True} | rest, m=m, n=n, k=k)


def rows(problem, ratios, *, aten_us=100.0, run="run", status=Status.OK, **where):
    """One full measurement of ATen and of each config, its time being `ratio * aten_us`."""
    l2, torch, clock = where.get("l2", "cold"), where.get("torch", "2.13.0"), where.get("clock", "host")
    device, spread = where.get("device", CPU), where.get("spread", 0.001)
    for config, ratio in ({ATEN: 1.0} | ratios).items():
        us = ratio * aten_us
        times = Times(us, us * (1 - spread), us * (1 + spread), 30, aten_us)
        kind = Status.OK if config == ATEN else status
        yield Measurement(
            problem, config, device, Protocol(clock, l2, 1, 30), Toolchain(torch=torch), run, kind,
            times if kind in (Status.OK, Status.SLOW) else None,
        )  # fmt: skip


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Builders for problems, configs, measurements and catalogs."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    numbers = itertools.count()

    def catalog(*tables):
        """A Catalog of one table per list of measurements, in order."""
        paths = []
        for measurements in tables:
            paths.append(tmp_path / f"table{next(numbers)}.db")
            with Store.open(paths[-1]) as store:
                store.add(measurements)
                store.refresh()
        loaded = Catalog.load(Settings((), tmp_path / "user.db", "aten", False, ""), tables=paths)
        assert [table.path for table in loaded.tables[: len(paths)]] == paths
        opened.extend(loaded.tables)
        return loaded

    opened = []
    yield SimpleNamespace(
        catalog=catalog,
        problem=problem,
        rows=rows,
        cpp=cpp,
        cpu=CPU,
        query=lambda problem, device=CPU, **rest: Query(problem, device, **rest),
        here=Toolchain(torch="2.13.1"),
    )
    for table in opened:
        with contextlib.suppress(Exception):
            table.close()
