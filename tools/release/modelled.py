"""Rebuild the shipped tables of GPUs that we have not measured on, and the manifest beside them.

    python -m tools.release modelled [ARCH...]

Needs triton, which compiles without a GPU; torch is not needed. Writes `tables/sm80-nvidia-a100-sxm4-80gb.db`,
`tables/sm89-nvidia-l4.db` and `tables/sm100-nvidia-b200.db` from the preset `modelled`, and `tables/manifest.json`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.common import ROOT
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.generators.files.manifest import write_manifest
from gemmdb.generators.files.pack import pack
from gemmdb.generators.modelled import cross_compile

ARCHS = ("sm80", "sm89", "sm100")
MOST_BYTES = 2**20
"""The most bytes that each table may take in the wheel."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("arch", nargs="*", default=ARCHS, metavar="ARCH", help=f"default: {' '.join(ARCHS)}")
    parser.add_argument("--out", type=Path, default=ROOT / "tables", help="the folder of the tables")


def main(options: argparse.Namespace) -> None:
    """Build each table beside its place, move it there, and describe all of them."""
    if not cross_compile.available():
        raise SystemExit("this needs triton, which tells the kernels that spill registers: none of them may ship")
    for arch in options.arch:
        with tempfile.TemporaryDirectory(dir=options.out) as folder:
            made = Path(folder) / "made.db"
            report = build(BuildRequest(arch=arch, shapes="modelled", out=made, modelled=True))
            target = options.out / f"{report.device.slug}.db"
            pack(made, made)
            size = made.stat().st_size
            if size > MOST_BYTES:
                raise SystemExit(f"{target} would take {size} bytes, more than {MOST_BYTES}")
            made.replace(target)
        print(f"{target}: {report.rows:,} rows of {report.problems:,} problems, {size / 2**20:.2f} MiB", flush=True)
    write_manifest(options.out)
