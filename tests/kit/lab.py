"""Real tables with invented times, and a catalog over them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import Toolchain
from gemmdb.table.catalog import Catalog, Source
from gemmdb.table.measurement import Measurement, Protocol, Status, Times
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

AUTO = dict.fromkeys(("threads_m", "threads_n", "threads_k", "blocks_m", "blocks_n", "blocks_k"), 0)
CPU = Device("cpu", "cpu", "Some CPU", 2)


def cpp(**params: int) -> Config:
    """The packed GEMM of the CPU; threads and blocks that are not given are left to Inductor."""
    return Config.of("cpp", "packed_gemm", **AUTO | params)


def problem(m: int = 16, n: int = 256, k: int = 256, **rest: Any) -> Problem:
    """A bf16 `mm` with a constant weight; `rest` is what Problem.gemm takes."""
    given: dict[str, Any] = {"dtype": "bf16", "constant_weight": True} | rest
    return Problem.gemm("mm", m=m, n=n, k=k, **given)


def rows(
    problem: Problem,
    ratios: Mapping[Config, float],
    *,
    aten_us: float = 100.0,
    run: str = "run",
    status: Status = Status.OK,
    **where: Any,
) -> Iterator[Measurement]:
    """One full measurement of ATen and of each config, its time being `ratio * aten_us`."""
    l2, torch, clock = where.get("l2", "cold"), where.get("torch", "2.13.0"), where.get("clock", "host")
    device, spread = where.get("device", CPU), where.get("spread", 0.001)
    protocol = Protocol(clock, l2, 1, 30, version=3 if clock == "host" else 1)
    for config, ratio in {ATEN: 1.0, **ratios}.items():
        us = ratio * aten_us
        times = Times(us, us * (1 - spread), us * (1 + spread), 30, aten_us)
        kind = Status.OK if config == ATEN else status
        yield Measurement(
            problem, config, device, protocol, Toolchain(torch=torch), run, kind,
            times if kind in (Status.OK, Status.SLOW) else None,
        )  # fmt: skip


def rows_of(times: Mapping[Problem, Mapping[Config, float]], **where: Any) -> list[Measurement]:
    """The `rows` of several problems, by their ratios."""
    return [row for one, ratios in times.items() for row in rows(one, ratios, **where)]


@dataclass
class Lab:
    """Builders for problems, configs, measurements and queries, and catalogs of tables in `folder`."""

    folder: Path
    opened: list[Table] = field(default_factory=list)

    cpu = CPU
    here = Toolchain(torch="2.13.1")
    cpp = staticmethod(cpp)
    problem = staticmethod(problem)
    rows = staticmethod(rows)
    rows_of = staticmethod(rows_of)

    def query(self, problem: Problem, device: Device = CPU, **rest: Any) -> Query:
        return Query(problem, device, **rest)

    def catalog(self, *tables: Iterable[Measurement]) -> Catalog:
        """A Catalog of one table per list of measurements, in order, without those that are installed."""
        paths: list[Path] = []
        for measurements in tables:
            paths.append(self.folder / f"table{len(self.opened) + len(paths)}.db")
            with Store.open(paths[-1]) as store:
                store.add(measurements)
                store.refresh()
        loaded = [(Source(path, "explicit"), Table.open(path)) for path in paths]
        self.opened.extend(table for _, table in loaded)
        return Catalog(loaded)

    def close(self) -> None:
        for table in self.opened:
            with contextlib.suppress(Exception):
                table.close()
