"""Files of other tools in tests: who asks, the rows that they become, and what was left of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from gemmdb.devices import registry
from gemmdb.errors import InputError
from gemmdb.exchange.content import Tally
from gemmdb.exchange.foreign.races import Given
from gemmdb.exchange.formats import read
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.table.measurement import Measurement

CPU = Device("cpu", "cpu", "Test CPU", 2)


def resolve(name: str | None) -> Device:
    found = CPU if name == "cpu" else registry.find(name or "")
    if found is None:
        raise InputError(f"unknown device {name!r}")
    return found


H200 = resolve("NVIDIA H200")


def on_h200(**said: Any) -> Given:
    return Given(**{"device": "NVIDIA H200", "cuda": "13.0", "resolve": resolve, **said})


def rows_of(kind: str, path: Path, given: Given) -> tuple[list[Measurement], dict[str, int]]:
    """The rows of a file, and what was left as a dictionary from reason to count."""
    tally = Tally()
    content = read(path, kind, tally, given)
    return list(content.rows), {left.reason: left.count for left in tally.left}


def tile(m: int, n: int, k: int, warps: int, stages: int, group: int = 8) -> Config:
    return Config.of(
        "triton", "inductor_mm", block_m=m, block_n=n, block_k=k, group_m=group, warps=warps, stages=stages
    )


def write(path: Path, document: object) -> Path:
    path.write_text(document if isinstance(document, str) else json.dumps(document, indent=4))
    return path


MILLISECONDS = st.floats(1e-3, 1e3)
BLOCKS = st.sampled_from([16, 32, 64, 128])
TILES = st.tuples(BLOCKS, BLOCKS, BLOCKS, st.sampled_from([2, 4, 8]), st.integers(1, 5))
