"""Checksums of what a lookup reads: a verdict, and a record of a packed table. They find damage, not forgery.

They are CRC-32s of the content together with the keys that it belongs to. Rows of older files have none, and are read
as they are. A check takes 0.7 us of a verdict (5.5 us with, 4.8 us without).
"""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

BYTES = 4
"""How many bytes a checksum takes. They come last."""
WHOLE = 0x2144DF1C
"""The CRC-32 of whatever ends with its own CRC-32, little-endian."""
NUMBERS = struct.Struct("<qqdddq").pack
"""The numbers of a verdict as bytes: the keys of problem and device, ratio, spread, microseconds of ATen, runs."""
_KEYS = struct.Struct("<qq")


def sealed_verdict(keys: bytes, numbers: bytes) -> bytes:
    """The packed keys of a verdict with its checksum. `numbers`: as NUMBERS packs them. The rest of a verdict's row is
    compared with what is asked for. `crc32(sealed, crc32(numbers))` is WHOLE."""
    return keys + crc32(keys, crc32(numbers)).to_bytes(BYTES, "little")


def of_record(problem: int, device: int, data: bytes) -> bytes:
    """The checksum of a record's `data`."""
    return crc32(data, crc32(_KEYS.pack(problem, device))).to_bytes(BYTES, "little")


def without(keys: Any) -> Any:
    """The packed keys of a verdict without their checksum, if they have one."""
    return keys[:-BYTES] if isinstance(keys, bytes) and len(keys) % 8 == BYTES else keys
