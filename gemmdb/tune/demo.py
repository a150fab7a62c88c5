"""The main workflow end to end: record a program's GEMMs, build a table for them, compile with it, compare.

`gemmdb demo` runs it. A second run in the same folder measures nothing new. `benchmarks/results/demo.json` is the
latest result from an idle machine.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmdb.devices import detect
from gemmdb.errors import InputError

if TYPE_CHECKING:
    from gemmdb.tune.demo_model import Case

ROUNDS, WARMUP_CALLS = 60, 5
"""Timed calls of each module in each mode, and warmup calls."""
QUICK = ("int8-weight linear",)
"""Modules of a quick demo: one GEMM, about a minute."""
BUSY = 1
"""Exit code of a build that other programs stop."""
WORKLOAD, TABLE, RESULT = "workload.jsonl", "table.db", "result.json"
"""Files in the demo folder."""


def record_and_build(folder: Path, names: Sequence[str], wait: str | None, say: Callable[[str], None]) -> bool:
    """Run the two offline steps for the named modules (all if empty) with the commands that a user would type, passing
    each to `say`. A second run does not record again. `wait`: the --wait of the build, None for its default. Returns
    False if the build stopped because other programs use the machine. Raises InputError if a command fails."""

    def gemmdb(*arguments: str, tables: str = "", stops: int = 0) -> bool:
        say(f"gemmdb {shlex.join(arguments)}")
        environ = {**os.environ, "GEMMDB_TABLES": tables}
        done = subprocess.run([sys.executable, "-m", "gemmdb", *arguments], env=environ, check=False)
        if done.returncode not in (0, stops):
            raise InputError(f"gemmdb {arguments[0]} ended with exit code {done.returncode}")
        return done.returncode == 0

    folder.mkdir(parents=True, exist_ok=True)
    workload, table = str(folder / WORKLOAD), str(folder / TABLE)
    if not Path(workload).exists():
        gemmdb("record", "--out", workload, "--", sys.executable, "-m", "gemmdb.tune.demo_model", *names)
    # The model runs on the CPU, even if `native` would be a GPU.
    arch = "native" if detect.cuda() is None else "cpu"
    patience = [] if wait is None else ["--wait", wait]
    build = ("build", "--arch", arch, "--shapes", workload, "--effort", "quick", *patience, "--out", table)
    return gemmdb(*build, stops=BUSY) and gemmdb("coverage", workload, tables=table)


def compare(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Compile every module in three modes in this process, each with an empty kernel cache, and time them alternately.
    Write and return the result."""
    import torch
    import torch._inductor.config
    from torch._inductor.utils import fresh_cache

    import gemmdb.inductor
    from gemmdb.tune.demo_model import cases

    torch._inductor.config.freezing = True
    torch._inductor.config.autotune_num_choices_displayed = 0
    warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
    os.environ["GEMMDB_TABLES"] = str((folder / TABLE).absolute())
    modes: dict[str, dict[str, Any]] = {
        "default": {},
        "max-autotune": {"mode": "max-autotune"},
        "gemmdb": {"backend": "gemmdb", "options": {"gemmdb.on_miss": "error"}},
    }
    modules = cases(names)
    with torch.no_grad():
        # No mode pays for the first compile of the process: imports, a precompiled header.
        with fresh_cache():
            torch.compile(torch.nn.Linear(64, 64).eval())(torch.randn(2, 64))
        compiled, compile_s = {}, {}
        for mode, arguments in modes.items():
            compiled[mode], compile_s[mode] = _compile(modules, arguments)
        stats = gemmdb.inductor.stats()
        runs = {case.name: _run_in_turn(case, compiled) for case in modules}
        errors = {case.name: _max_error(case, compiled["gemmdb"][case.name]) for case in modules}
    result = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "python": platform.python_version(),
        "torch": torch.__version__, "gemmdb": gemmdb.__version__, "device": detect.cpu(torch.get_num_threads()).text,
        "threads": torch.get_num_threads(), "compile_s": compile_s, "run_us": runs, "max_error": errors, "stats": stats,
    }  # fmt: skip
    (folder / RESULT).write_text(json.dumps(result, indent=1))
    return result


def _compile(modules: Sequence[Case], arguments: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """Return the modules compiled in one mode, by name, and the seconds to the first results from an empty kernel
    cache."""
    import torch
    from torch._inductor.utils import fresh_cache

    torch._dynamo.reset()
    compiled = {case.name: torch.compile(case.module, **arguments) for case in modules}
    # max-autotune prints every choice that it times to stderr.
    with fresh_cache(), contextlib.redirect_stderr(io.StringIO()):
        start = time.perf_counter()
        for case in modules:
            compiled[case.name](case.x)
        return compiled, time.perf_counter() - start


def _run_in_turn(case: Case, compiled: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return the median microseconds per call for each mode. The modes alternate, so drift and other load affect all of
    them."""
    times: dict[str, list[float]] = {mode: [] for mode in compiled}
    for round_ in range(ROUNDS + WARMUP_CALLS):
        for mode, functions in compiled.items():
            start = time.perf_counter_ns()
            functions[case.name](case.x)
            if round_ >= WARMUP_CALLS:
                times[mode].append((time.perf_counter_ns() - start) / 1e3)
    return {mode: statistics.median(values) for mode, values in times.items()}


def _max_error(case: Case, function: Any) -> float:
    """Return the largest error against the reference, relative to its largest value."""
    reference = case.reference()
    return float((function(case.x).double() - reference).abs().max() / reference.abs().max())
