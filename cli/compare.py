"""`gemmdb compare`: times a whole program with and without gemmdb, and names the GEMMs that became slower."""

from __future__ import annotations

import ast
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain
from itertools import count as counting
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import typer
from typer import Argument, Option

from gemmdb import outcome
from gemmdb.advice import Act, Advice, Situation, advise
from gemmdb.cli.busy import PASTED_WAIT, AskOption, measures, patience
from gemmdb.cli.evidence import config_name, problem_name
from gemmdb.cli.gain import cache_hint, gain_cell, timed_facts
from gemmdb.cli.options import JsonFlag, WideFlag, require
from gemmdb.cli.output import Cell, Column, Row, count, microseconds, note, say, say_facts, say_json, say_table
from gemmdb.cli.progress import Pulse
from gemmdb.devices.load import Load
from gemmdb.errors import InputError
from gemmdb.kernels import names
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.lookup import over_sizes
from gemmdb.outcome import Kind, Outcome
from gemmdb.settings import DISABLED, Settings
from gemmdb.table.stats import Gain

if TYPE_CHECKING:
    from gemmdb.inductor.entry.comparison import Comparison

GEMMS = (
    Column("expected", right=True, rigid=True), Column("count", right=True, rigid=True, drop=2),
    Column("outcome", rigid=True, drop=1), Column("one call", right=True, rigid=True, drop=3),
    Column("gain", right=True, rigid=True), Column("kernel"), Column("GEMM"),
)  # fmt: skip

MORE = 4
"""Factor of the calls that narrow an interval to half."""
SCRIPT_MODULE = "gemmdb_compare"
"""Name of the script that is compared while it runs: not `__main__`, so that what it does as a program is left out."""


def compare(
    script: Path = Argument(metavar="SCRIPT", help="A Python file that defines `model` and `inputs`."),
    calls: int = Option(50, min=1, help="Timed calls of each version."),
    wait: AskOption = None,
    wide: WideFlag = False,
    json: JsonFlag = False,
) -> None:
    """Time a whole program with and without gemmdb, side by side.

    SCRIPT is run first. It defines `model`, a module or function, and `inputs`, the tuple of its arguments. Both
    versions are compiled and called alternately under `torch.no_grad()`, and their outputs are compared. The gain is an
    interval: if it contains 1, or if both versions run the same kernels, there is no difference. If gemmdb is slower,
    its kernels are disabled, first all together and then one at a time, to identify the GEMMs that cause the slowdown.

    While other programs use the machine, it asks on a terminal whether to wait, stop or measure anyway; --wait decides.
    If they disturbed the times, it reports that it cannot tell.

    \b
    Examples:
      gemmdb compare model.py
      gemmdb compare model.py --calls 200 --json

    \b
    Exit codes: 0 not slower by more than 1%, or it cannot tell; 1 slower, or stopped because other programs use the
    machine, 2 bad usage or bad input.
    """
    require("torch", "this command", "torch")
    limit_s = patience(wait)  # Refuses a wrong one before the script runs.
    if Settings.read().disabled:
        raise InputError(f"nothing can be compared while {DISABLED}; unset it for this command")
    with _importable(script), Pulse() as pulse:
        pulse.begin(f"running {script}", aloud=False)
        model, inputs = _loaded(script)
        from gemmdb.inductor.entry.compare import compare

        def nevertheless(busy: Load) -> bool:
            pulse.begin("", aloud=False)  # Nothing is printed after the question.
            return measures(busy, wait)

        anyway = limit_s is None
        found = compare(
            model, inputs, calls=calls, say=pulse.begin, wait_s=limit_s or 0.0,
            measures=lambda busy: anyway or nevertheless(busy),
        )  # fmt: skip
    if json:
        say_json("compare", {**asdict(found), "speedup": found.speedup, "verdict": found.verdict})
    else:
        us = {"default": found.default_us, "gemmdb": found.gemmdb_us}
        low, high = found.interval or (found.speedup, found.speedup)
        timed = timed_facts(us, Gain(found.speedup, low, high), found.verdict)
        say_facts([
            *([("gain", "cannot tell, nothing was timed")] if found.stopped else timed),
            ("kernels", _kernels(found.kernels, len(found.configs))),
            ("outputs", "identical") if found.error == 0 else
            ("largest difference", f"{found.error:.2g} of the largest value"),
        ], hang=not wide)  # fmt: skip
        if found.products:
            say()
            say_gemms(found.products, wide)
    if found.error and not found.kernels:
        note("ATen runs every GEMM on both sides, so the difference is not from a kernel of gemmdb")
    from gemmdb.inductor.observe.stats import respelled

    if changed := respelled((one.get("note", ""), int(one["count"])) for one in found.products):
        note(changed)
    if found.repeated:
        note(f"two calls of default mode differ by {found.repeated:.2g} themselves")
    if not isfinite(found.error):
        note("the outputs differ: one has a NaN or an infinity where the other has none")
    for line in found.advice().splitlines():
        note(line)
    if found.verdict in ("cannot tell", "same kernels", "no difference"):
        for step in steps(found, script, calls):
            note(str(step))
    if found.stopped:
        note(f"stopped: {found.stopped}; --wait 10m waits longer, --wait 0s measures anyway")
        raise typer.Exit(1)
    if found.verdict == "slower":
        gemms = [(Problem.parse(p["problem"]), Device.parse(p["device"]), int(p["count"])) for p in found.products]
        if why := cache_hint(gemms):
            note(why)
        raise typer.Exit(1)


def _kernels(other: int, gemms: int) -> str:
    """`other`: how many of the distinct GEMMs another kernel than ATen's default runs."""
    if not gemms:
        return "no GEMM in the compiled graphs"
    if not other:
        return f"ATen runs {'the only GEMM' if gemms == 1 else f'all {gemms} GEMMs'}"
    return f"{other} of {count(gemms, 'distinct GEMM')} not run as in default mode"


def steps(found: Comparison, script: Path, calls: int) -> tuple[Advice, ...]:
    """Return what to do after a comparison of that many `calls` without a gain."""
    command = shlex.join(["gemmdb", "compare", str(script)])
    if found.stopped:
        return (Advice(Act.IDLE, "wait until the others end", f"{command} --calls {calls} --wait {PASTED_WAIT}"),)
    if found.verdict == "cannot tell":
        why = "other programs used the machine or default mode was noisy; run again when the machine is idle"
        return (Advice(Act.IDLE, why, command),)
    served = [Outcome(Kind(one["outcome"]), one["why"]) for one in found.products]
    kinds = Counter(one.kind for one in served)
    refused = Counter(f"{outcome.ONLY_ATEN}: {one.reason}" for one in served if one.kind is Kind.ATEN_REFUSED)
    disturbed = sum(one.disturbed for one in served)
    # The script itself compiles nothing.
    workload = _unused(f"{script.stem}-compare")
    record = shlex.join(["gemmdb", "record", "--out", workload, "--", "gemmdb", "compare", str(script)])
    build = f"{record} && {shlex.join(['gemmdb', 'build', '--arch', 'native', '--shapes', workload])}"
    return advise(Situation(
        refused, unknown=kinds[Kind.ATEN_UNKNOWN] - disturbed, best=kinds[Kind.ATEN_BEST],
        predicted=kinds[Kind.ATEN_PREDICTED], build=build, disturbed=disturbed, command=build,
        more=f"{command} --calls {MORE * calls}" if found.verdict == "no difference" else "",
    ))  # fmt: skip


def _unused(stem: str) -> str:
    """Return the name of a workload that does not exist: to one that does, a recording would be added."""
    names = chain([f"{stem}.jsonl"], (f"{stem}-{number}.jsonl" for number in counting(2)))
    return next(name for name in names if not Path(name).exists())


def say_gemms(gemms: Sequence[Mapping[str, Any]], wide: bool) -> None:
    """Print a table of the GEMMs of `stats()` with their expected times and gains, longest first. Shares are of the
    expected time."""
    rows = sorted(gemms, key=lambda one: (-_total_us(one), one["problem"]))
    total = sum(map(_total_us, rows)) or 1.0
    say_table(GEMMS, (_gemm(one, total, wide) for one in rows), whole=wide)


def _total_us(one: Mapping[str, Any]) -> float:
    return float(one["expected_us"] or 0.0) * int(one["count"])


def _gemm(one: Mapping[str, Any], total: float, wide: bool) -> Row:
    us, gain, share = one["expected_us"], one["speedup_vs_aten"], _total_us(one) / total
    is_known = us is not None and gain is not None
    is_served = is_known and not Kind(one["outcome"]).aten
    return (
        Cell(f"{share:.1%}", "cyan", share) if is_known else "", str(one["count"]), one["outcome"],
        microseconds(us) if is_known else "", gain_cell(over_sizes.gain_of(one) if is_served else None),
        config_name(one["config"], wide), names.ranged(problem_name(one["problem"], wide), one.get("ranges", {})),
    )  # fmt: skip


@contextmanager
def _importable(script: Path) -> Iterator[None]:
    """Inside the block, the script and its model can import modules from the script's folder, and its own one."""
    folder = str(script.absolute().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.modules.pop(SCRIPT_MODULE, None)
        if folder in sys.path:  # The script may have changed sys.path.
            sys.path.remove(folder)


def _loaded(script: Path) -> tuple[Any, tuple[Any, ...]]:
    """Return `model` and `inputs` of a script. The model is called once without gemmdb, so its own errors are reported
    as such."""
    if script.is_dir():
        raise InputError(f"{script} is a folder; name a Python file")
    if not script.is_file():
        raise InputError(f"{script}: no such file")
    if unset := _unset(script):
        named = ", ".join(f"`{name}`" for name in unset)
        raise InputError(f"{script} never sets {named}, which `gemmdb compare` calls; see gemmdb compare --help")
    try:
        names = _run(script)
    except SyntaxError as error:
        what = "a Python file that sets `model` and `inputs`"
        raise InputError(f"{script}: {type(error).__name__}: {error}; name {what}") from error
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


def _run(script: Path) -> dict[str, Any]:
    """Return what a script defines, in a module that can be imported later: Dynamo imports the module of each function
    that it traces into, such as the forward of a block in an `nn.Sequential`."""
    module = sys.modules[SCRIPT_MODULE] = ModuleType(SCRIPT_MODULE)
    module.__file__ = str(script)
    exec(compile(script.read_bytes(), str(script), "exec"), vars(module))  # The user's own program.
    return vars(module)


def _unset(script: Path) -> list[str]:
    """Which of `model` and `inputs` no line of a script sets, so that it need not run first. A script that cannot be
    parsed, or whose names may come from elsewhere, has none: running it tells."""
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, ValueError, SyntaxError):
        return []
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
        elif isinstance(node, ast.Name) and node.id in ("exec", "globals"):
            return []
    return [] if "*" in found else [name for name in ("model", "inputs") if name not in found]
