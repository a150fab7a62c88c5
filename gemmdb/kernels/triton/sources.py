"""The jinja2 source of a Triton kernel, read from its folder, and its digest."""

from __future__ import annotations

import functools
import hashlib
from itertools import pairwise

_HISTORY = (
    ("079aeed31ef3a5a2", "b8961afbe98e678a", "46cf91b376e7c293", "2285ca0639c8cbf6", "e4fae27619584873"),
    ("d207994d8700ded2", "078daff6141357c6"),
    ("f1cfe0fb8fcf5453", "012c2e9c955b0691", "a9f936e578fc31c0", "7d81a1695cc5f968", "e52d1bf60dec2386"),
    ("3799dccb4110a658", "1d94976414df7a58", "0421d23c09bc24d8", "721c1568a4a2ab56", "f8d699728006d0d6"),
    ("9ecb33375ecd23f0", "4421a6b02e3a9b49", "d0fda949991afa96", "05c23a31e68b0e76"),
    ("2b822f06dd6f893e", "81c638bb4e7fa254", "e1740f02d8ecaa49", "9b75edecdcc96ca3"),
    ("3b992e027bd165b8", "ba042125d931cbdc"),
    ("189ca5b09cc9b921", "d4c6f8ea1c262a94"),
    ("7f339d284e2d1986", "84e1da6b62a2dd91", "2f84e281cf81afb3", "e97769d881f34ed8"),
    ("368fbc0e4b60cf75", "a6f6708ac2f4c0c3"),
)  # fmt: skip
"""The digests of each kernel, the former ones first."""
EQUIVALENT = {former: later for digests in _HISTORY for former, later in pairwise(digests)}
"""Former digests, each with the later one whose source renders the same kernels, so that rows of the former stay valid.
Add a pair only if both versions render the same text for every problem and config of our kernels in the shipped
tables, apart from constants that no line reads."""
_INT4 = (f"{__package__}.int4", f"{__package__}.int4_skinny")
"""Kernels that read the words of an int4 weight. The first has the macros for it."""


@functools.cache
def source(package: str) -> str:
    """The source of the kernel in that package, after the macros that it shares with others."""
    # `dependent` defines one macro, which renders nothing. It stays because the digests in shipped tables include it.
    shared = [(__package__, name) for name in ("dequant", "parts", "dependent")]
    shared += [(_INT4[0], "words")] if package in _INT4 else []
    return "".join(_read(*one) for one in (*shared, (package, "kernel")))


@functools.cache
def digest(package: str) -> str:
    """16 hexadecimal digits that change with the source."""
    return hashlib.sha256(source(package).encode()).hexdigest()[:16]


def _read(package: str, name: str) -> str:
    from importlib import resources  # Imported where it is used: it takes longer than all of gemmdb's own modules.

    return (resources.files(package) / f"{name}.py.jinja").read_text()
