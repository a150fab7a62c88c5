"""A build for the tools `kills` and `cluster-kills`, in a process of its own.

    python -m benchmarks.stress.driver SHAPES OUT [ADDRESS]

It is `gemmdb build --effort quick` for this CPU, except that it does not wait for a quiet machine, which would take
longer than most builds live, and marks no row as disturbed. With the ADDRESS of a Ray cluster the nodes measure.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

from gemmdb.devices import load
from gemmdb.generators.backend import Backend
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.measure import backends, quiet
from gemmdb.key.device import Device


def unquiet(device: Device) -> Backend:
    """The backend of a device, in a process that takes its machine for quiet."""
    load.PROC = Path(os.devnull)
    quiet.NOISY = math.inf  # type: ignore[attr-defined]
    return backends.backend_for(device)


def main() -> None:
    """Build."""
    shapes, out, *address = sys.argv[1:]
    request = BuildRequest(
        arch="cpu", shapes=shapes, out=Path(out), effort="quick", ray=address[0] if address else None
    )
    if not address:
        load.PROC = Path(os.devnull)
        quiet.NOISY = math.inf  # type: ignore[attr-defined]
        build(request)
        return
    from benchmarks.stress.driver import unquiet as on_a_node  # By a name that nodes know; this module is `__main__`.
    from gemmdb.generators.cluster.build import build as build_over
    from gemmdb.generators.cluster.node import Site

    build_over(request, site=Site(make=on_a_node))


if __name__ == "__main__":
    main()
