"""The Inductor integration: products that a table knows get the table's kernel.

    >>> import gemmdb.inductor
    >>> gemmdb.inductor.enable()            # or torch.compile(model, backend="gemmdb")
    >>> print(gemmdb.inductor.summary())    # the same as data: stats()

Importing this imports no torch; `enable()` waits for the program to import Inductor by itself.
"""

import importlib
from typing import TYPE_CHECKING, Any

from gemmdb.inductor.entry.ways_in import disable, enable, force, record

if TYPE_CHECKING:
    from gemmdb.inductor.observe.comparison import Comparison, compare
    from gemmdb.inductor.observe.journal import reset_stats, stats
    from gemmdb.inductor.observe.reporting import report
    from gemmdb.inductor.observe.reports import Report
    from gemmdb.inductor.observe.summaries import summary
    from gemmdb.inductor.observe.summary_text import Summary

__all__ = [
    "Comparison",
    "Report",
    "Summary",
    "compare",
    "disable",
    "enable",
    "force",
    "record",
    "report",
    "reset_stats",
    "stats",
    "summary",
]

_ON_DEMAND = {
    "Comparison": "observe.comparison",
    "compare": "observe.comparison",
    "Summary": "observe.summary_text",
    "summary": "observe.summaries",
    "Report": "observe.reports",
    "report": "observe.reporting",
    "reset_stats": "observe.journal",
    "stats": "observe.journal",
}
"""Names and their modules, imported at their first use: a program that compiles nothing need not wait for them."""


def __getattr__(name: str) -> Any:
    """Import a name at its first use."""
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"gemmdb.inductor.{_ON_DEMAND[name]}"), name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
