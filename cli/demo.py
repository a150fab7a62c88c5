"""`gemmdb demo`: the main workflow end to end, on this machine's CPU."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from typer import Option

from gemmdb.cli.busy import AskOption
from gemmdb.cli.compare import say_gemms
from gemmdb.cli.options import WideFlag, require
from gemmdb.cli.output import note, say, say_prose, say_table
from gemmdb.errors import InputError


def demo(
    folder: Path = Option(Path("gemmdb-demo"), help="Where the workload, the table and the result are kept."),
    quick: bool = Option(False, "--quick", help="One GEMM only, in about a minute."),
    compare: bool = Option(False, "--compare", help="Only compare, with the existing table."),
    wait: AskOption = None,
    wide: WideFlag = False,
) -> None:
    """Show what gemmdb does, with a small model on this CPU.

    It records the GEMMs of a transformer block and two int8 modules, builds a table for them, compiles them in default
    mode, with max-autotune and with gemmdb, and compares times and results. This takes 4 to 7 minutes; a second run in
    the same folder measures nothing new. It needs torch and a C++ compiler, no GPU and no network. While other programs
    use the machine, its build asks or stops, as `gemmdb build` does.

    \b
    Examples:
      gemmdb demo
      gemmdb demo --quick --folder /tmp/demo

    \b
    Exit codes: 0 done, 1 stopped because other programs use the machine, 2 bad usage, a missing package or a step that
    fails.
    """
    require("torch", "this command")
    from gemmdb.tune import demo

    names = demo.QUICK if quick else ()
    if not compare:
        if not demo.record_and_build(folder, names, wait, lambda command: print(f"\n$ {command}", flush=True)):
            again = shlex.join(["gemmdb", "demo", "--folder", str(folder), *["--quick"] * quick])
            note(f"the demo stopped: run it when the machine is idle: {again}")
            raise typer.Exit(1)
    elif not (folder / demo.TABLE).exists():
        raise InputError(f"{folder / demo.TABLE}: there is no table yet; leave --compare out")
    _say(demo.compare(folder, names), wide)
    say_prose(f"the full result is in {folder / demo.RESULT}")


def _say(result: Mapping[str, Any], wide: bool) -> None:
    """Print the GEMMs, the times of the modules in the three modes, and the largest error."""
    stats, modes = result["stats"], list(result["compile_s"])
    say()
    say_gemms(stats["products"], wide)
    say()
    say(f"kernels benchmarked at compile time with gemmdb: {stats['benchmarked']}")
    say()
    rows = [("compile, seconds", *(f"{result['compile_s'][mode]:.1f}" for mode in modes))]
    rows += [(f"run {name}, us", *(f"{runs[mode]:,.0f}" for mode in modes)) for name, runs in result["run_us"].items()]
    say_table(("", *modes), rows, right=modes)
    say()
    name, error = max(result["max_error"].items(), key=lambda item: item[1])
    say_prose(f"largest error against eager float64, relative: {error:.1e} ({name})")
