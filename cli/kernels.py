"""`gemmdb kernels`: lists the prebuilt CUTLASS kernels; `gemmdb kernels build`: compiles them."""

from __future__ import annotations

import os
from pathlib import Path

import typer
from typer import Option

from gemmdb.cli.output import count, note, say, say_facts
from gemmdb.cli.progress import Pulse
from gemmdb.errors import InputError
from gemmdb.kernels.cutlass import prebuilt
from gemmdb.key.toolchain import major


def kernels(context: typer.Context) -> None:
    """Show the prebuilt CUTLASS kernels, or compile them.

    They are stored next to the shipped tables. A compile that uses one of them loads it and needs neither nvcc nor
    CUTLASS headers.

    \b
    Examples:
      gemmdb kernels
      gemmdb kernels build --help

    \b
    Exit codes: 0 done, 1 there are none, 2 bad usage or bad input.
    """
    if context.invoked_subcommand is not None:
        return
    path = prebuilt.shipped()
    if not path.exists():
        note("no prebuilt kernels: gemmdb kernels build compiles them with nvcc")
        raise typer.Exit(1)
    archive = prebuilt.archive()
    if archive is None:
        raise InputError(f"{path} cannot be read, or is not what manifest.json describes; install gemmdb again")
    made = archive.provenance
    say_facts((
        ("file", str(path)), ("size", f"{path.stat().st_size / 2**20:.1f} MiB"),
        ("kernels", f"{len(archive.kernels)} for {made.get('arch', '?')}"),
        ("compiled by", f"nvcc {made['cuda']}, CUTLASS {made.get('cutlass', '?')}"),
        ("runs with", f"torch for CUDA {major(str(made['cuda']))}"),
    ))  # fmt: skip


def build(
    arch: str = Option(prebuilt.ARCH, metavar="ARCH", help="The GPUs to compile for; only sm90 has such kernels."),
    out: Path | None = Option(
        None, "--out", "-o", metavar="FILE", help="The archive to write; default: the one next to the shipped tables."
    ),
    jobs: int | None = Option(None, metavar="N", min=1, help="Parallel compiles; default: one per processor."),
    ready: bool = Option(False, "--ready", help="Compile nothing: write an archive of the kernels compiled so far."),
) -> None:
    """Compile CUTLASS kernels into one archive: those that the tables use, and all for block scales and int4 weights.

    It needs nvcc and the CUTLASS headers (pip install 'gemmdb[cutlass]'), but no GPU. A kernel takes nvcc up to
    a minute. Compiled kernels are cached, so you can continue an interrupted build. The same kernels always give the
    same bytes.

    \b
    Examples:
      gemmdb kernels build --arch sm90
      gemmdb kernels build --jobs 32 --out kernels-sm90.zip
      gemmdb kernels build --ready

    \b
    Exit codes: 0 done, 2 bad usage or bad input, 130 interrupted.
    """
    if arch != prebuilt.ARCH:
        raise InputError(f"--arch: {arch} has no CUTLASS kernel; {prebuilt.ARCH} has")
    from gemmdb.generators import cutlass_archive
    from gemmdb.generators.files.manifest import write_manifest
    from gemmdb.table.catalog import Catalog

    tools = cutlass_archive.Tools.find()
    units = cutlass_archive.wanted(Catalog.load())
    if not units:
        raise InputError("no table in use names a CUTLASS kernel: `gemmdb tables` lists them")
    compiled, jobs = cutlass_archive.ready(units, tools), jobs or os.cpu_count() or 1
    left = len(units) - len(compiled)
    if ready:
        units = {name: units[name] for name in compiled}
        note(f"{count(left, 'kernel')} not compiled yet" if left else "all are compiled")
        if not units:
            raise InputError("--ready: no kernel is compiled yet")
    elif left:
        note(f"{left} of {count(len(units), 'kernel')} to compile, {jobs} at once")
    with Pulse() as pulse:

        def report(done: int, of: int) -> None:
            pulse.begin(f"{done}/{of} kernels", aloud=False)

        report(len(compiled), len(units))
        files = cutlass_archive.build(units, tools, jobs, report)
    path = out or prebuilt.shipped(arch)
    cutlass_archive.write(files, tools, path)
    if path == prebuilt.shipped(arch):  # Kernels that are not in the manifest are not used.
        write_manifest(path.parent)
    say(f"{path}: {count(len(files), 'kernel')}, {path.stat().st_size / 2**20:.1f} MiB")
