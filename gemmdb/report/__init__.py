"""What `gemmdb report` shows: the data of a table, a workload or a comparison, and the page that draws them.

`table`, `workload`, `comparison` and `program` compute the data, as frozen dataclasses. `page` makes one HTML file of
them. `save` writes the page of what gemmdb did in this process.
"""

from __future__ import annotations

import os
from pathlib import Path


def save(path: str | os.PathLike[str], name: str = "this program") -> None:
    """Write the page of what gemmdb did in this process since its start or `reset_stats`: each product of the compiled
    graphs with what answered it, its gain, and why ATen runs where it does. `name`: the page's title. Needs torch and
    `gemmdb[report]`. Raises InputError."""
    import gemmdb
    from gemmdb.inductor import stats
    from gemmdb.report import page, program

    document = program.of_stats(stats(), name).document()
    page.write(page.render({**document, "version": gemmdb.__version__}), Path(path))
