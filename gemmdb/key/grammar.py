"""The grammar of a Problem's canonical form, read back."""

from __future__ import annotations

import re
from typing import Any

from gemmdb.errors import InputError
from gemmdb.key.int4 import Groups
from gemmdb.key.operands import Bias, Numerics, Operand

_SIZE, _WORD = r"(?:0|[1-9]\d{0,9})", r"[a-z0-9_:\-]+"
_TEXT = re.compile(
    rf"(?P<op>[a-z_]+)(?: batch=(?P<batch>{_SIZE}))? m=(?P<m>{_SIZE}) n=(?P<n>{_SIZE}) k=(?P<k>{_SIZE})"
    rf" a=(?P<a>{_WORD}) b=(?P<b>{_WORD})"
    rf" out=(?P<out>{_WORD}) bias=(?P<bias>{_WORD}) scalars=(?P<scalars>{_WORD}) fusion=(?P<fusion>{_WORD})"
    r" fp32=(?P<fp32>[a-z0-9]+) acc=(?P<acc>[a-z0-9]+) reduced=(?P<reduced>[01])"
    r" deterministic=(?P<deterministic>[01]) constant=(?P<constant>[01])"
    r"(?: scales=(?P<scales>[a-z]+) fast=(?P<fast>[01]))?"
    rf"(?: groups=(?P<groups>{_SIZE}) ragged=(?P<ragged>[a-z]+))?"
    r"(?: group=(?P<group>[1-9]\d{0,3}) zeros=(?P<zeros>[a-z0-9]+) packing=(?P<packing>[a-z0-9\-]+))?"
)


def fields(text: str) -> dict[str, Any]:
    """The fields of the Problem with this canonical form. Raises InputError for a text that is not the form of any
    Problem. The caller compares whether the text is the canonical form."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise InputError(f"malformed problem {text[:200]!r}")
    part = match.groupdict()
    return {
        "op": part["op"],
        "m": int(part["m"]),
        "n": int(part["n"]),
        "k": int(part["k"]),
        "a": Operand.parse(part["a"]),
        "b": Operand.parse(part["b"]),
        "out": part["out"],
        "bias": Bias.parse(part["bias"]),
        "scalars": part["scalars"],
        "fusion": part["fusion"],
        "numerics": Numerics(
            part["fp32"], part["acc"], part["reduced"] == "1", part["deterministic"] == "1", part["fast"] == "1"
        ),
        "constant": part["constant"] == "1",
        "batch": int(part["batch"] or 1),
        "scales": part["scales"] or "",
        "groups": int(part["groups"] or 0),
        "ragged": part["ragged"] or "",
        "int4": Groups(int(part["group"]), part["zeros"], part["packing"]) if part["group"] else None,
    }
