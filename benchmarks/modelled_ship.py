"""Rebuild the shipped tables of GPUs that nobody here has, and the manifest beside them.

    python benchmarks/modelled_ship.py [ARCH...]

Needs triton, which compiles without a GPU; torch is not needed. Writes `tables/sm80-nvidia-a100-sxm4-80gb.db`,
`tables/sm89-nvidia-l4.db`, `tables/sm100-nvidia-b200.db` from the preset `modelled`, and `tables/manifest.json`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.files.manifest import write_manifest
from gemmdb.generators.modelled import cross_compile

ROOT = Path(__file__).parents[1]
ARCHS = ("sm80", "sm89", "sm100")
MOST_BYTES = 3 * 2**19
"""What each table may take of the wheel."""


def main() -> None:
    """Build every table beside its place, put it there, and describe all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch", nargs="*", default=ARCHS)
    parser.add_argument("--out", type=Path, default=ROOT / "tables")
    options = parser.parse_args()
    if not cross_compile.available():
        raise SystemExit("this needs triton: kernels that spill must not be among the shipped rows")
    for arch in options.arch:
        with tempfile.TemporaryDirectory(dir=options.out) as folder:
            part = Path(folder) / "part.db"
            report = build(BuildRequest(arch=arch, shapes="modelled", out=part, modelled=True))
            target = options.out / f"{report.device.slug}.db"
            size = part.stat().st_size
            if size > MOST_BYTES:
                raise SystemExit(f"{target} would take {size} bytes, more than {MOST_BYTES}")
            part.replace(target)
        print(f"{target}: {report.rows:,} rows of {report.problems:,} problems, {size / 2**20:.2f} MiB", flush=True)
    write_manifest(options.out)


if __name__ == "__main__":
    main()
