"""Rows of a table and the values they stand for: packed keys, columns, fingerprints, and the JSON of two columns."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from typing import Any

from gemmdb.errors import InputError
from gemmdb.key import canonical
from gemmdb.table.measurement import Measurement

_KEY = struct.Struct(">q")
_FIGURES, _LARGEST = 100, 1e300
"""Figures of a device at most, and the largest magnitude of one."""
_FIGURE = re.compile(r"[a-z][a-z0-9_]{0,39}")


def pack(*keys: int) -> bytes:
    """Keys in the form of `verdict.keys`: 8 bytes each, big-endian."""
    return struct.pack(f">{len(keys)}q", *keys)


def unpack(keys: bytes) -> tuple[int, ...]:
    """The keys that `pack` stored. Raises struct.error if the length is not a multiple of 8 bytes."""
    return tuple(key for (key,) in _KEY.iter_unpack(keys))


def values(row: Measurement) -> tuple[Any, ...]:
    """A Measurement as a row with the columns `schema.COLUMNS`."""
    t = row.times
    times = (None,) * 5 if t is None else (t.median_us, t.low_us, t.high_us, t.samples, t.aten_us)
    parts = (row.config.key, row.protocol.key, row.toolchain.key, canonical.key(row.run))
    tail = (*times, row.error, row.compile_s, row.detail)
    return (row.problem.key, row.device.key, row.key, *parts, row.status.value, *tail)


def fingerprint(row: Measurement) -> int:
    """128 bits of a Measurement's whole content, with the texts of everything that it names. The content digest of a
    table is the sum of the fingerprints modulo 2**128: equal rows give an equal digest in any order, and the writer
    updates it row by row."""
    parts = (row.problem, row.config, row.device, row.protocol, row.toolchain, row)
    text = "\n".join(part.text for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big")


def parse_figures(text: Any) -> dict[str, float]:
    """A device's figures, read from JSON. Raises InputError unless it is an object that maps short names to finite
    numbers."""
    try:
        figures = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError("a device's figures are not JSON") from error
    if not isinstance(figures, dict) or len(figures) > _FIGURES:
        raise InputError("a device's figures are not a small JSON object")
    for name, value in figures.items():
        # The bound also keeps out JSON integers that are too large for a float.
        number = type(value) in (int, float) and -_LARGEST <= value <= _LARGEST
        if not number or not _FIGURE.fullmatch(name):
            raise InputError(f"a device's figure is malformed: {name[:40]!r}")
    return figures


def parse_provenance(text: Any) -> dict[str, Any]:
    """What a run recorded about itself. Raises InputError for anything but a JSON object."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError("a run's provenance is not JSON") from error
    if not isinstance(found, dict):
        raise InputError("a run's provenance is not a JSON object")
    return found
