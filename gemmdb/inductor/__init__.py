"""The Inductor integration: products that a table knows get the table's kernel, and nothing is benchmarked.

    >>> import gemmdb.inductor
    >>> gemmdb.inductor.enable()            # or torch.compile(model, backend="gemmdb")
    >>> gemmdb.inductor.stats()["rungs"]

Importing this imports no torch; `enable()` waits for the program to import Inductor by itself.
"""

from gemmdb.inductor.comparison import Comparison, compare
from gemmdb.inductor.entry import disable, enable, force, record
from gemmdb.inductor.journal import reset_stats, stats

__all__ = ["Comparison", "compare", "disable", "enable", "force", "record", "reset_stats", "stats"]
