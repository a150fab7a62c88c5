"""`gemmdb compare`: times a whole program with and without gemmdb, and names the GEMMs that became slower."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Annotated, Any

import typer

from gemmdb.cli import brief, cached
from gemmdb.cli.options import JsonFlag, WideFlag
from gemmdb.cli.output import count, gain_style, microseconds, note, say, say_facts, say_json, with_bar
from gemmdb.cli.progress import Pulse
from gemmdb.cli.table import Cell, Column, say_table
from gemmdb.errors import InputError
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

SAME = "none, ATen runs all products on both sides: the times differ by chance"
PRODUCTS = (
    Column("expected", right=True, rigid=True), Column("count", right=True, rigid=True, drop=2),
    Column("rung", rigid=True, drop=1), Column("one call", right=True, rigid=True, drop=3),
    Column("gain", right=True, rigid=True), Column("kernel"), Column("product"),
)  # fmt: skip


def compare(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A Python file that sets `model` and `inputs`.")],
    calls: Annotated[int, typer.Option(min=1, help="Timed calls of each version.")] = 50,
    wide: WideFlag = False,
    json: JsonFlag = False,
) -> None:
    """Time a whole program with and without gemmdb, side by side.

    SCRIPT is run first. It sets `model`, a module or function, and `inputs`, the tuple of its arguments. Both versions
    are compiled and called in turns under `torch.no_grad()`, and their outputs are compared. The gain is an interval:
    no difference where it contains 1, and none where ATen runs all products on both sides. On a busy machine it waits
    a little, and then says that it cannot tell. If gemmdb is slower, its kernels are switched off, all together and
    then each in turn, to name the GEMMs that cost the time.

    \b
    Examples:
      gemmdb compare model.py
      gemmdb compare model.py --calls 200 --json

    \b
    Exit codes: 0 not slower by more than 1%, or it cannot tell; 1 slower, 2 bad usage or bad input.
    """
    if importlib.util.find_spec("torch") is None:
        raise InputError("this command needs torch, which is not installed: pip install torch")
    with _beside(script), Pulse() as pulse:
        pulse.begin(f"running {script}", aloud=False)
        model, inputs = _loaded(script)
        from gemmdb.inductor.entry.compare import compare

        found = compare(model, inputs, calls=calls, say=pulse.begin)
    if json:
        say_json("compare", {**asdict(found), "speedup": found.speedup, "verdict": found.verdict})
    else:
        say_facts(_facts(found), hang=not wide)
        _say_products(found.products, wide)
    if not isfinite(found.error):
        note("the outputs differ: one has a NaN or an infinity where the other has none")
    for line in found.advice().splitlines():
        note(line)
    if found.verdict == "slower" and (why := _in_cache(found.products)):
        note(why)
    if found.verdict == "cannot tell":
        note("times of a busy machine, or of an unsteady default mode: repeat it when the machine is quiet")
    if found.verdict == "slower":
        raise typer.Exit(1)


def _in_cache(products: Sequence[Mapping[str, Any]]) -> str:
    """Whether kernels lose since the operands stay in a CPU's cache; empty if not."""
    if any(Device.parse(one["device"]).kind != "cpu" for one in products):
        return ""
    return cached.hint((Problem.parse(one["problem"]), int(one["count"])) for one in products)


def _facts(found: Any) -> list[tuple[str, ...]]:
    low, high = found.interval
    most = max(found.default_us, found.gemmdb_us)
    style = {"faster": "green", "slower": "red"}.get(found.verdict, "")
    gain = f"{found.speedup:.3f}x, between {low:.3f}x and {high:.3f}x: {found.verdict}"
    return [
        ("default", with_bar(f"{found.default_us:.1f} us", found.default_us, most)),
        ("gemmdb", with_bar(f"{found.gemmdb_us:.1f} us", found.gemmdb_us, most)),
        ("gain", SAME if found.verdict == "same kernels" else gain, style),
        ("kernels", f"{found.kernels} of {count(len(found.configs), 'distinct product')} not run by ATen"),
        ("largest difference", f"{found.error:.2g} of the largest value"),
    ]


def _say_products(products: Sequence[Mapping[str, Any]], wide: bool) -> None:
    """Each product with what the tables expect of it, those of most time first. The share is of the expected times."""
    if not products:
        return
    rows = sorted(products, key=lambda one: (-_total_us(one), one["problem"]))
    total = sum(map(_total_us, rows)) or 1.0
    say()
    say_table(PRODUCTS, (_product(one, total, wide) for one in rows), whole=wide)


def _total_us(one: Mapping[str, Any]) -> float:
    return float(one["expected_us"] or 0.0) * int(one["count"])


def _product(one: Mapping[str, Any], total: float, wide: bool) -> tuple[str | Cell, ...]:
    us, gain, share = one["expected_us"], one["speedup_vs_aten"], _total_us(one) / total
    known = us is not None and gain is not None
    return (
        Cell(f"{share:.1%}", "cyan", share) if known else "", str(one["count"]), one["rung"],
        microseconds(us) if known else "", Cell(f"{gain:.2f}x", gain_style(gain)) if known else "",
        one["config"] if wide else brief.config(one["config"]),
        one["problem"] if wide else brief.problem(one["problem"]),
    )  # fmt: skip


@contextmanager
def _beside(script: Path) -> Iterator[None]:
    """Inside the block, the script and its model can import modules from the script's folder."""
    folder = str(script.absolute().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:  # The script may have changed sys.path.
            sys.path.remove(folder)


def _loaded(script: Path) -> tuple[Any, tuple[Any, ...]]:
    """`model` and `inputs` of a script. The model is called once without gemmdb, so an error in it is reported as
    such."""
    if not script.is_file():
        raise InputError(f"{script}: no such file")
    try:
        names = runpy.run_path(str(script), run_name="gemmdb_compare")
    except (Exception, SystemExit) as error:
        raise InputError(f"{script}: {type(error).__name__}: {error}") from error
    model, inputs = names.get("model"), names.get("inputs")
    if not callable(model) or not isinstance(inputs, tuple | list):
        raise InputError(f"{script}: must set a callable `model` and a tuple `inputs` of its arguments")
    import torch

    try:
        with torch.no_grad():
            model(*inputs)
    except Exception as error:
        raise InputError(f"{script}: the model fails on its inputs: {type(error).__name__}: {error}") from error
    return model, tuple(inputs)
