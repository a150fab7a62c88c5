"""What a notebook shows of `stats()`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from gemmdb.errors import InputError
from gemmdb.kernels import names
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem

MOST = 50
"""The most products that are listed; the others are counted."""
HEADINGS = ("count", "rung", "kernel", "one call", "over ATen", "product", "note")


class Stats(dict[str, Any]):
    """What `stats()` returns: a dict, which a notebook shows as a table of its products."""

    def _repr_html_(self) -> str:
        """What a notebook shows. Nothing of a table becomes markup."""
        return "".join(_html(self))


def _html(stats: Mapping[str, Any]) -> Iterator[str]:
    products = stats["products"]
    rungs = ", ".join(f"{count} {rung}" for rung, count in stats["rungs"].items()) or "no product"
    yield f"<p>gemmdb: {escape(rungs)}</p>"
    if products:
        yield f"<table>{_row('th', HEADINGS)}{''.join(_row('td', _cells(one)) for one in products[:MOST])}</table>"
    if len(products) > MOST:
        yield f"<p>and {len(products) - MOST} more</p>"
    if stats["uncovered"]:
        named = ", ".join(f"{count} x {name}" for name, count in stats["uncovered"].items())
        yield f"<p>not steered by gemmdb: {escape(named)}</p>"
    for error in stats["errors"]:
        yield f"<p>a failure inside gemmdb, which the compile went on without: {escape(str(error))}</p>"


def _row(kind: str, cells: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in cells)}</tr>"


def _cells(one: Mapping[str, Any]) -> tuple[str, ...]:
    us, gain = one["expected_us"], one["speedup_vs_aten"]
    return (
        str(one["count"]), str(one["rung"]), _kernel(one["config"]), "" if us is None else f"{us:,.2f} us",
        "" if gain is None else f"{gain:.2f}x", _product(one), str(one["note"]).partition("; ")[0],
    )  # fmt: skip


def _kernel(config: str) -> str:
    try:
        return names.kernel(Config.parse(config))
    except InputError:
        return config


def _product(one: Mapping[str, Any]) -> str:
    try:
        return names.ranged(names.short(Problem.parse(one["problem"])), one["ranges"])
    except InputError:
        return str(one["problem"])
