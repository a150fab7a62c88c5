"""The Inductor integration: products that a table knows get the table's kernel, and nothing is benchmarked.

    >>> import gemmdb.inductor
    >>> gemmdb.inductor.enable()            # or torch.compile(model, backend="gemmdb")
    >>> gemmdb.inductor.stats()["rungs"]

Importing this imports no torch; `enable()` waits for the program to import Inductor by itself.
"""

from typing import TYPE_CHECKING, Any

from gemmdb.inductor.entry import disable, enable, force, record

if TYPE_CHECKING:
    from gemmdb.inductor.comparison import Comparison, compare
    from gemmdb.inductor.journal import reset_stats, stats

__all__ = ["Comparison", "compare", "disable", "enable", "force", "record", "reset_stats", "stats"]


def __getattr__(name: str) -> Any:
    """The names that are imported at their first use: a program that compiles nothing need not wait for them."""
    if name in ("Comparison", "compare"):
        from gemmdb.inductor import comparison

        return getattr(comparison, name)
    if name in ("reset_stats", "stats"):
        from gemmdb.inductor import journal

        return getattr(journal, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
