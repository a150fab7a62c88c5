"""The one text codec behind every canonical form, and the 64-bit key made from a text.

A canonical text is `kind name=value name=value ...` with the fields in a fixed order. Equal values have equal texts
and equal texts have equal values, so a text can be stored, compared and hashed in place of the value.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, Generic, TypeVar, overload

from gemmdb.errors import InputError

Scalar = str | int | float | bool | None
_T = TypeVar("_T")

_PLAIN = re.compile(r"[A-Za-z0-9_.:+\-/,()]*")
_ESCAPED = re.compile(r"%([0-9A-F]{2})")
_NONE = "~"
_UNPACK = struct.Struct(">q").unpack


class lazy(Generic[_T]):
    """`functools.cached_property` without its lock, which Python 3.11 takes at every first access and which costs a
    third of the time of making a problem's key. Two threads may both compute the value, and get the same one."""

    def __init__(self, compute: Callable[[Any], _T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[_T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> _T: ...

    def __get__(self, instance: object | None, owner: type) -> lazy[_T] | _T:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value


def state(value: object) -> dict[str, Any]:
    """For `__getstate__` of a class with lazy values: another thread may add one while pickle goes through them."""
    return value.__dict__.copy()


def key(text: str) -> int:
    """The 64-bit key of a canonical text, signed so that SQLite stores it as an INTEGER.

    Keys can be made to collide, so code that finds a row by its key must compare the text too. Raises InputError for a
    text with lone surrogates, as `encode` does.
    """
    raw = text.encode() if text.isascii() else _bytes(text)
    found: int = _UNPACK(blake2b(raw, digest_size=8).digest())[0]
    return found


def encode(kind: str, fields: Iterable[tuple[str, Scalar]]) -> str:
    """`kind name=value ...`; `None` becomes `~`, booleans become 0 and 1, and characters that are not plain become
    %XX."""
    return " ".join([kind, *(f"{name}={_encode_value(value)}" for name, value in fields)])


def decode(kind: str, text: str) -> dict[str, str | None]:
    """The fields of a text that `encode` wrote, as strings.

    Raises InputError when the text is of another kind, is malformed or repeats a field.
    """
    head, *pairs = text.split(" ")
    if head != kind:
        raise InputError(f"not a {kind}: {text[:80]!r}")
    fields: dict[str, str | None] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name in fields:
            raise InputError(f"malformed {kind}: {text[:200]!r}")
        fields[name] = None if value == _NONE else _unescape(value)
    return fields


def _encode_value(value: Scalar) -> str:
    if type(value) is int:  # The usual case.
        return str(value)
    if value is None:
        return _NONE
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, float):
        return repr(value)
    text = str(value)
    if _PLAIN.fullmatch(text):
        return text
    return "".join(c if _PLAIN.fullmatch(c) else "".join(f"%{b:02X}" for b in _bytes(c)) for c in text)


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"not Unicode text: {text[:80]!r}") from error


def _unescape(value: str) -> str:
    if "%" not in value:
        return value
    try:
        raw = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), value)
        return raw.encode("latin-1").decode()
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise InputError(f"malformed value {value[:80]!r}") from error
