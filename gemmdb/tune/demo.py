"""The main job from end to end: record a program's GEMMs, build a table for them, compile against it, compare.

`gemmdb demo` runs it. It writes `workload.jsonl`, `table.db` and `result.json` into a folder. A second run in that
folder measures nothing new. `benchmarks/results/demo.json` is the last result from an otherwise idle machine.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmdb.devices.detect import cuda
from gemmdb.errors import InputError

if TYPE_CHECKING:
    from gemmdb.tune.demo_model import Case

ROUNDS, WARM = 60, 5
"""Timed calls of each module in each mode, and calls before them."""
QUICK = ("int8-weight linear",)
"""The modules of a quick demo: one product, which takes a minute."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Demo:
    """Where the demo keeps its files, the names of its modules (all of them if empty), and who is told each command."""

    folder: Path
    names: Sequence[str]
    say: Say

    @property
    def workload(self) -> Path:
        """What was recorded."""
        return self.folder / "workload.jsonl"

    @property
    def table(self) -> Path:
        """The table that was built."""
        return self.folder / "table.db"

    @property
    def result(self) -> Path:
        """What came out."""
        return self.folder / "result.json"

    def record_and_build(self) -> None:
        """The two offline steps, by the commands that a user would type. A second run does not record again. Raises
        InputError if one fails."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.workload.exists():
            program = [sys.executable, "-m", "gemmdb.tune.demo_model", *self.names]
            self._gemmdb("record", "--out", str(self.workload), "--", *program)
        # The model runs on the CPU, also where `native` would be a GPU.
        arch = "native" if cuda() is None else "cpu"
        shapes = ("--arch", arch, "--shapes", str(self.workload))
        self._gemmdb("build", *shapes, "--effort", "quick", "--out", str(self.table))
        self._gemmdb("coverage", str(self.workload), tables=str(self.table))

    def _gemmdb(self, *arguments: str, tables: str = "") -> None:
        self.say(f"gemmdb {shlex.join(arguments)}")
        environ = {**os.environ, "GEMMDB_TABLES": tables}
        done = subprocess.run([sys.executable, "-m", "gemmdb", *arguments], env=environ, check=False)
        if done.returncode != 0:
            raise InputError(f"gemmdb {arguments[0]} ended with exit code {done.returncode}")

    def compare(self) -> dict[str, Any]:
        """Compile every module in three modes in this process, each with an empty kernel cache, and run them in turn.
        Writes and returns the result."""
        import torch
        import torch._inductor.config

        import gemmdb.inductor
        from gemmdb.devices.detect import cpu
        from gemmdb.tune.demo_model import cases

        torch._inductor.config.freezing = True
        torch._inductor.config.autotune_num_choices_displayed = 0
        warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
        os.environ["GEMMDB_TABLES"] = str(self.table.absolute())
        modules = cases(self.names)
        with torch.no_grad():
            warm_up()
            compiled, compile_s = {}, {}
            for mode, compile_as in modes().items():
                compiled[mode], compile_s[mode] = compile_all(modules, compile_as)
            stats = gemmdb.inductor.stats()
            runs = {case.name: run_in_turn(case, compiled) for case in modules}
            errors = {case.name: max_error(case, compiled["gemmdb"][case.name]) for case in modules}
        result = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "gemmdb": gemmdb.__version__,
            "device": cpu(torch.get_num_threads()).text,
            "threads": torch.get_num_threads(),
            "compile_s": compile_s,
            "run_us": runs,
            "max_error": errors,
            "stats": stats,
        }
        self.result.write_text(json.dumps(result, indent=1))
        return result


def modes() -> dict[str, Callable[[Any], Any]]:
    """The three ways to compile."""
    import torch

    return {
        "default": torch.compile,
        "max-autotune": lambda module: torch.compile(module, mode="max-autotune"),
        "gemmdb": lambda module: torch.compile(module, backend="gemmdb", options={"gemmdb.on_miss": "error"}),
    }


def warm_up() -> None:
    """Compile once, so that no mode pays what the first compile of a process costs (imports, a precompiled header)."""
    import torch

    with fresh_cache():
        torch.compile(torch.nn.Linear(64, 64).eval())(torch.randn(2, 64))


def fresh_cache() -> Any:
    """A context with an empty kernel cache."""
    from torch._inductor.utils import fresh_cache

    return fresh_cache()


def compile_all(modules: Sequence[Case], compile_as: Callable[[Any], Any]) -> tuple[dict[str, Any], float]:
    """The modules compiled in one mode, by name, and the seconds to the first results, from an empty kernel cache."""
    import torch

    torch._dynamo.reset()
    compiled = {case.name: (compile_as(case.module), case.x) for case in modules}
    # max-autotune prints every choice that it times to stderr.
    with fresh_cache(), contextlib.redirect_stderr(io.StringIO()):
        start = time.perf_counter()
        for function, x in compiled.values():
            function(x)
        seconds = time.perf_counter() - start
    return {name: function for name, (function, _) in compiled.items()}, seconds


def run_in_turn(case: Case, compiled: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Median microseconds of a call per mode. The modes take turns, so drift and other load affect all of them."""
    times: dict[str, list[float]] = {mode: [] for mode in compiled}
    for round_ in range(ROUNDS + WARM):
        for mode, functions in compiled.items():
            start = time.perf_counter_ns()
            functions[case.name](case.x)
            if round_ >= WARM:
                times[mode].append((time.perf_counter_ns() - start) / 1e3)
    return {mode: statistics.median(values) for mode, values in times.items()}


def max_error(case: Case, function: Any) -> float:
    """The largest error against the float64 (or integer) reference, relative to its largest value."""
    reference = case.reference()
    return float((function(case.x).double() - reference).abs().max() / reference.abs().max())
