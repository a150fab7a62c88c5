"""The Inductor integration: GEMMs that a table knows get the table's kernel.

    >>> import gemmdb.inductor
    >>> gemmdb.inductor.enable()            # or torch.compile(model, backend="gemmdb")
    >>> print(gemmdb.inductor.summary())    # the same as data: stats()

Importing this imports no torch; `enable()` waits for the program to import Inductor by itself.
"""

import importlib
from typing import TYPE_CHECKING, Any

from gemmdb.inductor.entry.enable import disable, enable, force, record

if TYPE_CHECKING:
    from gemmdb.inductor.entry.compare import compare
    from gemmdb.inductor.entry.comparison import Comparison
    from gemmdb.inductor.entry.open_ops import open_ops
    from gemmdb.inductor.observe.report import Report, report
    from gemmdb.inductor.observe.stats import reset_stats, stats
    from gemmdb.inductor.observe.summary import Summary, summary

__all__ = [
    "Comparison",
    "Report",
    "Summary",
    "compare",
    "disable",
    "enable",
    "force",
    "open_ops",
    "record",
    "report",
    "reset_stats",
    "stats",
    "summary",
]

_ON_DEMAND = {
    "Comparison": "entry.comparison",
    "compare": "entry.compare",
    "open_ops": "entry.open_ops",
    "Report": "observe.report",
    "report": "observe.report",
    "reset_stats": "observe.stats",
    "stats": "observe.stats",
    "Summary": "observe.summary",
    "summary": "observe.summary",
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
