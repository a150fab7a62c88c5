"""Checksums of what a lookup reads: a verdict, and a record of a packed table. They find damage, not forgery.

They are CRC-32s of the content together with the keys that it belongs to. Rows of older files have none, and are read
as they are. A check takes a third of a microsecond.
"""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

BYTES = 4
"""How many bytes a checksum takes. They come last."""
_NUMBERS, _KEYS = struct.Struct("<qqdddq"), struct.Struct("<qq")


def of_verdict(problem: int, device: int, keys: bytes, numbers: tuple[float, float, float, int], head: str) -> bytes:
    """The checksum of a verdict. `problem`, `device`: their keys. `keys`: packed, without the checksum. `numbers`: its
    ratio, spread, microseconds of ATen and runs. Raises struct.error or OverflowError for numbers that are none."""
    return crc32(keys + head.encode(), crc32(_NUMBERS.pack(problem, device, *numbers))).to_bytes(BYTES, "little")


def of_record(problem: int, device: int, data: bytes) -> bytes:
    """The checksum of a record's `data`."""
    return crc32(data, crc32(_KEYS.pack(problem, device))).to_bytes(BYTES, "little")


def without(keys: Any) -> Any:
    """The packed keys of a verdict without their checksum, if they have one."""
    return keys[:-BYTES] if isinstance(keys, bytes) and len(keys) % 8 == BYTES else keys
