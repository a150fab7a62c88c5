"""A build for the tool `kills`, in a process of its own: `python -m benchmarks.stress.driver SHAPES OUT`.

It is `gemmdb build --effort quick` for this CPU, except that it does not wait for a quiet machine, which would take
longer than most builds live, and marks no row as disturbed.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

from gemmdb.devices import load
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.measure import quiet


def main() -> None:
    """Build."""
    load.PROC = Path(os.devnull)
    quiet.NOISY = math.inf  # type: ignore[attr-defined]
    shapes, out = sys.argv[1:]
    build(BuildRequest(arch="cpu", shapes=shapes, out=Path(out), effort="quick"))


if __name__ == "__main__":
    main()
