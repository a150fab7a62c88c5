"""Compare a tiny version of each program, compiled with gemmdb, with the version that is not compiled.

    python -m benchmarks.programs check [--programs GLOBS] [--device cpu]

The tests do the same. A program fails if it does not compile, if gemmdb reports an error or sees no GEMM, or if its
outputs are farther from the reference than the program's tolerance and than twice those of default mode.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.programs.program import Built, Program
from benchmarks.programs.suite import chosen
from benchmarks.programs.ways import WAYS
from gemmdb.errors import InputError


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--programs", default="*", metavar="GLOBS", help="names, separated by commas; default: all")
    parser.add_argument("--source", default="", metavar="FILE", help="programs of this Python file; default: the suite")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu", help="default: cpu")


def main(options: argparse.Namespace) -> None:
    """Check the programs, print a line for each; raise InputError if one fails."""
    warnings.simplefilter("ignore")  # Those of the packages.
    failed = []
    for program in chosen(options.programs, options.source):
        began = time.monotonic()
        try:
            said = str(checked(program, options.device))
        except Exception as error:
            failed.append(program.name)
            said = f"FAILED {type(error).__name__}: {error}"
        print(f"{program.name:28} {time.monotonic() - began:5.1f} s  {said}", flush=True)
    if failed:
        raise InputError(f"{len(failed)} failed: {', '.join(failed)}")


def checked(program: Program, device: str) -> dict[str, Any] | str:
    """The errors of the eager version and of gemmdb, of default mode if gemmdb's is above the tolerance, and gemmdb's
    rungs; or why the program cannot run here. Raises AssertionError with what is wrong."""
    import torch

    from benchmarks.programs import work

    if why := work.why_not(program, device):
        return f"skipped: {why}"
    found: dict[str, Any] = {}
    with torch.set_grad_enabled(program.grad), own_state():
        built = program.make("tiny", device)
        wanted = work.reference(built)
        assert work.length(wanted) > 0, "the outputs are zeros, and any other zeros would be right"
        found["eager"] = work.distance(wanted, work.answered(built))
        found["gemmdb"] = _error(program, "gemmdb", built, wanted)
        found |= _products(WAYS["gemmdb"])
        limit = program.tolerance
        if found["gemmdb"] > limit:
            found["default"] = _error(program, "default", built, wanted)
            limit = max(2 * found["default"], limit)
    assert found["gemmdb"] <= limit, f"an error of {found['gemmdb']:.2e}, above {limit:.2e}"
    return found


def _error(program: Program, way: str, built: Built, wanted: Any) -> float:
    from benchmarks.programs import work

    WAYS[way].enter()
    _, answer, _ = work.first_call(program, WAYS[way], built)
    return work.distance(wanted, answer)


def _products(way: Any) -> dict[str, Any]:
    from benchmarks.programs.ways import statistics_of

    stats = statistics_of(way)
    assert not stats["errors"], stats["errors"]
    assert stats["products"] or stats["uncovered"], "gemmdb saw no GEMM"
    return {"rungs": stats["rungs"], "uncovered": stats["uncovered"]}


@contextmanager
def own_state() -> Iterator[None]:
    """Inside, no table is the user's. Afterwards the environment, Inductor's flags (torchao and gpt-fast set them) and
    gemmdb are as they were. Inductor's caches are shared: both ways then compile the same C++ once."""
    import torch
    from torch._inductor import config

    import gemmdb.inductor

    environ, flags, precision = dict(os.environ), config.save_config(), torch.get_float32_matmul_precision()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["XDG_DATA_HOME"] = folder
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(environ)
            config.load_config(flags)
            torch.set_float32_matmul_precision(precision)
            torch._dynamo.reset()
            gemmdb.inductor.disable()
            gemmdb.inductor.reset_stats()
