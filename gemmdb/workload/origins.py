"""Where GEMMs come from in the user's code: the module's path and the source line, as text of a bounded length."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MAX_CHARACTERS = 120
"""The most characters of each text; the end of a longer one is kept, which says more."""
MAX_ORIGINS = 8
"""The most origins of a GEMM. Layers of a model have one each."""


@dataclass(frozen=True, slots=True)
class Origin:
    """One place. `module`: the path of the innermost module, such as `layers.0.mlp.up`; `source`: file and line, such
    as `serve.py:12`. Either may be empty."""

    module: str = ""
    source: str = ""

    def __str__(self) -> str:
        return " at ".join(part for part in (self.module, self.source) if part)


def merged(*several: Iterable[Origin]) -> tuple[Origin, ...]:
    """All origins without repeats and empty ones, the first MAX_ORIGINS of them."""
    found = dict.fromkeys(one for some in several for one in some if one.module or one.source)
    return tuple(found)[:MAX_ORIGINS]


def read(items: Any) -> tuple[Origin, ...]:
    """The origins of a workload's line. They only inform, so whatever is none is left out; what is too long is cut, and
    control characters become `?`."""
    if not isinstance(items, list):
        return ()
    found = (Origin(clean(item.get("module")), clean(item.get("source"))) for item in items if isinstance(item, dict))
    return merged(found)


def clean(text: object) -> str:
    """A text as it may be shown: printable, on one line, and bounded. Anything but a text is empty."""
    if not isinstance(text, str):
        return ""
    short = text if len(text) <= MAX_CHARACTERS else f"...{text[3 - MAX_CHARACTERS :]}"
    return "".join(c if c.isprintable() else "?" for c in short)
