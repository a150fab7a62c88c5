"""Real measurements and real table files, made from a universe small enough that rows meet."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from gemmdb import Config, Device, Measurement, Problem, Protocol, Status, TableError, Toolchain
from gemmdb.kernels.config import ATEN
from gemmdb.table import read_timeouts
from gemmdb.table.catalog import Catalog
from gemmdb.table.measurement import EMITTED, TIMED, Times
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store
from kit.devices import H200


def packed(threads_k: int) -> Config:
    rest = dict.fromkeys(("threads_m", "threads_n", "blocks_m", "blocks_n", "blocks_k"), 0)
    return Config.of("cpp", "packed_gemm", threads_k=threads_k, **rest)


def tile(**params: int | str) -> Config:
    """A tile kernel of a GPU with some of its parameters given."""
    given: dict[str, int | str] = {
        "block_m": 64, "block_n": 64, "block_k": 64, "warps": 4, "stages": 3, "group_m": 8, "split_k": 1,
        "load": "pointer", "swap": 0, "reduce": "none", "dequant": "cast",
    }  # fmt: skip
    return Config.of("triton", "tile", **given | params)


GEMM = Problem.gemm("mm", m=64, n=1024, k=4096, dtype="bf16")
SIZES = tuple(GEMM.resized(m, n, 4096) for m in (16, 64, 256) for n in (1024, 1280))


@dataclass(frozen=True)
class Kit:
    device = Device("cpu", "cpu", "Test CPU", 2, figures={"copy_gb_per_s": 20.5})
    other = H200
    cold = Protocol("host", "cold", 10, 30)
    hot = Protocol("host", "hot", 10, 30)
    old = Toolchain(torch="2.9.1+cpu")
    new = Toolchain(torch="2.13.0+cpu")
    newer = Toolchain(torch="2.13.1+cpu")
    aten = ATEN
    configs = (ATEN, packed(0), packed(1), packed(2))
    problem = Problem.gemm("mm", m=16, n=512, k=512, dtype="fp32", constant_weight=True)

    @property
    def problems(self) -> tuple[Problem, ...]:
        return tuple(self.problem.resized(m, 512, 512) for m in (16, 32, 64))

    def row(self, config: Config = ATEN, us: float = 10.0, run: str = "run-1", **fields: Any) -> Measurement:
        """A full measurement of `us` microseconds against 10 of ATen, with an interval of 1%."""
        given: dict[str, Any] = {
            "problem": self.problem,
            "device": self.device,
            "protocol": self.cold,
            "toolchain": self.new,
            "status": Status.OK,
            **fields,
        }
        spread = float(given.pop("spread", 0.01))
        aten = float(given.pop("aten", 10.0))
        if given["status"] in TIMED:
            given["times"] = Times(us, us * (1 - spread), us * (1 + spread), 30, aten)
        return Measurement(config=config, run=run, **given)

    def write(self, path: Path, rows: Iterable[Measurement]) -> Path:
        """A table of these rows, its verdicts made."""
        with Store.open(path) as store:
            store.add(rows)
            store.refresh()
        return path

    def rows(self, most: int = 24) -> st.SearchStrategy[list[Measurement]]:
        """Rows that share problems, configs, runs and classes, failures among them."""
        return st.lists(self.measurements(), max_size=most)

    def measurements(self) -> st.SearchStrategy[Measurement]:
        us = st.floats(1, 30) | st.sampled_from([5.0, 9.95, 10.0])
        status = st.sampled_from([Status.OK] * 5 + [Status.SLOW, Status.WRONG, Status.CRASH, Status.ERROR])
        return st.builds(
            self.row,
            config=st.sampled_from(self.configs),
            us=us,
            run=st.sampled_from(["run-1", "run-2", "run-3"]),
            problem=st.sampled_from(self.problems[:2]),
            device=st.sampled_from([self.device, Device("cpu", "cpu", "Test CPU", 2, figures={"l2_bytes": 2.0})]),
            protocol=st.sampled_from([self.cold, self.hot]),
            toolchain=st.sampled_from([self.old, self.new, self.newer]),
            status=status,
            spread=st.sampled_from([0.001, 0.02, 0.2]),
            error=st.none() | st.floats(0) | st.just(-0.0),
            detail=st.sampled_from(["", EMITTED, "worker died, signal 11: 100% \u2192 '\""]),
        )

    def content(self, path: Path) -> tuple[object, ...]:
        """Everything about a table that is a function of its measurements."""
        table = Table.open(path)
        rows = list(table.measurements())
        pairs = {(row.problem.text, row.device.text): (row.problem, row.device) for row in rows}
        verdicts = [verdict for pair in pairs.values() for verdict in table.verdicts(*pair)]
        figures = [dict(device.figures) for device in table.devices()]
        found = (table.digest, rows, verdicts, figures, table.provenance())
        table.close()
        return found


def edit(path: Path, *statements: Any) -> None:
    """Change a table behind its writer's back, as a stranger could."""
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(*statement) if isinstance(statement, tuple) else db.execute(statement)


def names(catalog: Catalog) -> list[str]:
    """The file names of the tables in use."""
    return [table.path.name for table in catalog.tables]


def refusal(read: Callable[..., object], *args: Any, match: str | None = None) -> str:
    """The one line with which something is refused as a broken table."""
    with pytest.raises(TableError, match=match) as error:
        read(*args)
    assert "\n" not in str(error.value)
    return str(error.value)


def shorten_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten every limit of a read to 0.2 s, and forget the files that were slow in other tests."""
    monkeypatch.setattr(read_timeouts, "_slow_files", {})
    monkeypatch.setattr(read_timeouts.Deadline.begin, "__defaults__", (0.2,))
    monkeypatch.setattr(read_timeouts, "STATEMENT_S", 0.2)
    monkeypatch.setattr(read_timeouts, "BULK_S", 0.2)
