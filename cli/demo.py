"""`gemmdb demo`: the main job from end to end, on this machine's CPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gemmdb.cli import brief
from gemmdb.cli.options import WideFlag
from gemmdb.cli.output import gain_style, microseconds, say, say_prose
from gemmdb.cli.table import Cell, Column, say_table
from gemmdb.errors import InputError

PRODUCTS = (
    Column("rung", rigid=True), Column("time", right=True, rigid=True), Column("ATen", right=True, rigid=True),
    Column("gain", right=True, rigid=True), Column("kernel"), Column("product"),
)  # fmt: skip


def demo(
    folder: Annotated[Path, typer.Option(help="Where the workload, the table and the result are kept.")] = Path(
        "gemmdb-demo"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="One product only, in about a minute.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Only compare, with the table that is there.")] = False,
    wide: WideFlag = False,
) -> None:
    """Show what gemmdb does, with a small model on this CPU.

    It records the GEMMs of a transformer block and of two int8 modules, builds a table for them, compiles them in
    default mode, with max-autotune and with gemmdb, and compares times and results. That takes 4 to 7 minutes, and a
    second run in the same folder measures nothing new. It needs torch and a C++ compiler, no GPU and no network.

    \b
    Examples:
      gemmdb demo
      gemmdb demo --quick --folder /tmp/demo

    \b
    Exit codes: 0 done, 2 bad usage, a missing package or a step that fails.
    """
    if importlib.util.find_spec("torch") is None:
        raise InputError("this command needs torch, which is not installed: pip install torch 'gemmdb[build]'")
    from gemmdb.tune.demo import QUICK, Demo

    wanted = Demo(folder, QUICK if quick else (), _say_command)
    if not compare:
        wanted.record_and_build()
    elif not wanted.table.exists():
        raise InputError(f"{wanted.table}: there is no table yet; leave --compare out")
    _say(wanted.compare(), wide)
    say_prose(f"all of it is in {wanted.result}")


def _say_command(command: str) -> None:
    print(f"\n$ {command}", flush=True)


def _say(result: Mapping[str, Any], wide: bool) -> None:
    """The products, the times of the modules in the three modes, and the largest error."""
    stats, modes = result["stats"], list(result["compile_s"])
    say()
    say_table(PRODUCTS, (_product(one, wide) for one in stats["products"]), whole=wide)
    say()
    say(f"kernels benchmarked at compile time with gemmdb: {stats['benchmarked']}")
    say()
    rows = [("compile, seconds", *(f"{result['compile_s'][mode]:.1f}" for mode in modes))]
    rows += [(f"run {name}, us", *(f"{runs[mode]:,.0f}" for mode in modes)) for name, runs in result["run_us"].items()]
    say_table(("", *modes), rows, right=modes)
    say()
    name, error = max(result["max_error"].items(), key=lambda item: item[1])
    say_prose(f"largest error against eager float64, relative: {error:.1e} ({name})")


def _product(one: Mapping[str, Any], wide: bool) -> tuple[str | Cell, ...]:
    us, gain = one["expected_us"], one["speedup_vs_aten"]
    known = us is not None and gain is not None
    return (
        one["rung"], microseconds(us) if known else "", microseconds(us * gain) if known else "",
        Cell(f"{gain:.2f}x", gain_style(gain)) if known else "",
        one["config"] if wide else brief.config(one["config"]),
        one["problem"] if wide else brief.problem(one["problem"]),
    )  # fmt: skip
