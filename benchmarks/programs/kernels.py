"""Name the kernels of a program that differ most between default mode and another way, by the profiler.

    python -m benchmarks.programs kernels NAME [--way gemmdb] [--without PROBLEM] [--out FILE.jsonl]

Both ways are compiled one after the other in this process, each with caches of its own, and profiled over a few calls.
Inductor numbers the kernels of a graph anew in each way, so a kernel that became one number less is listed twice, with
opposite signs. `measure` says whether a program is faster; this says where it gains and loses. With `--without` the way
is compared with itself with ATen for one problem: this says what the kernel for that problem changes around it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from benchmarks.common import software
from benchmarks.programs.program import Program
from benchmarks.programs.suite import suite
from benchmarks.programs.ways import WAYS
from gemmdb.errors import InputError

CALLS, WARM, SHOWN = 3, 3, 24
Taken = Mapping[str, tuple[float, float]]
"""By kernel: how often one call of the program launches it, and the microseconds of these together."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("program", metavar="NAME", help="as `list` names it")
    parser.add_argument("--source", default="", metavar="FILE", help="programs of this Python file; default: the suite")
    parser.add_argument("--way", choices=tuple(WAYS), default="gemmdb", help="compared with default; default: gemmdb")
    parser.add_argument(
        "--without", metavar="PROBLEM", help="compare the way with itself with ATen for the problems of this text"
    )
    parser.add_argument("--size", choices=("gpu", "tiny"), default="gpu", help="default: gpu")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append a JSON line with all kernels")


def main(options: argparse.Namespace) -> None:
    """Profile both ways and print the kernels that differ most."""
    program = suite(options.source).get(options.program)
    if program is None:
        raise InputError(f"no program {options.program}; `list` names them")
    first = f"{options.way} with ATen for {options.without}" if options.without else "default"
    found = {
        first: profiled(program, options.way if options.without else first, options, options.without),
        options.way: profiled(program, options.way, options),
    }
    if options.out:
        row = {"program": program.name, **software(), "kernels": found}
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
    before, after = found[first], found[options.way]
    print(f"{program.name}: {total(before):,.0f} us with {first}, {total(after):,.0f} us with {options.way}")
    for change, name in differing(before, after)[:SHOWN]:
        counts = " -> ".join(f"{one.get(name, (0.0, 0.0))[0]:g}" for one in (before, after))
        print(f"{change:+9.1f} us  {counts:>10} x  {name[:100]}")


def profiled(program: Program, name: str, options: argparse.Namespace, spared: str | None = None) -> Taken:
    """The kernels of one call of a program in one way, with ATen for the `spared` problem. On a CPU, the operators.
    Raises InputError where the program cannot run."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from benchmarks.programs import check, work

    device = options.device
    if why := work.why_not(program, device):
        raise InputError(f"{program.name}: {why}")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with torch.set_grad_enabled(program.grad), check.own_state(), tempfile.TemporaryDirectory() as folder:
        built = program.make(options.size, device)
        WAYS[name].enter(Path(folder))
        with _sparing(spared, name):
            run, _, _ = work.first_call(program, WAYS[name], built)
        for _ in range(WARM):
            run()
        activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
        with profile(activities=[activity]) as seen:
            for _ in range(CALLS):
                run()
            work.waited()
    return {one.key: (one.count / CALLS, us / CALLS) for one in seen.key_averages() if (us := _us(one, device))}


def _sparing(problem: str | None, name: str) -> AbstractContextManager[object]:
    """Within it, ATen solves the problem."""
    from gemmdb.inductor.entry import active

    if problem is None:
        return nullcontext()
    served = active.requested()
    if served is None:
        raise InputError(f"--without needs a way with gemmdb, and {name} has none")
    return active.use(served.with_aten_for([problem]))


def _us(one: Any, device: str) -> float:
    return float(one.self_device_time_total if device == "cuda" else one.self_cpu_time_total)


def total(taken: Taken) -> float:
    """Microseconds of all kernels of a call."""
    return sum(us for _, us in taken.values())


def differing(before: Taken, after: Taken) -> list[tuple[float, str]]:
    """(how many microseconds more a kernel takes afterwards, its name), the largest change first."""
    none = (0.0, 0.0)
    changes = ((after.get(name, none)[1] - before.get(name, none)[1], name) for name in {*before, *after})
    return sorted(changes, key=lambda one: (-abs(one[0]), one[1]))
