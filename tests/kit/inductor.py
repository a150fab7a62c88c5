"""What the tests of torch.compile on this CPU share: configs, measurements, compiled programs, other processes.

This module imports torch: only tests that need torch import it."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config

import gemmdb.inductor
from gemmdb.devices import detect
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import installed
from gemmdb.table.measurement import Measurement, Protocol, Status, Times

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["kit.preload_begin", "torch._dynamo", "torch._inductor.compile_fx", "kit.preload_end"])
_STARTING = threading.Lock()
"""Held while the environment of this process is not its own."""

ROOT = Path(__file__).parents[2]
WITHOUT_GPU = pytest.mark.skipif(
    torch.version.cuda is None or find_spec("triton") is None or torch.cuda.is_available(),
    reason="needs torch's build for CUDA, Triton, and no GPU: tests/gpu runs such code on one",
)
"""Of tests that generate code for a GPU where there is none."""
IN_CPP = pytest.mark.skipif(
    find_spec("triton") is not None and torch.__version__ < "2.12",
    reason="in C++, torch 2.11 generates code for a GPU only on one, where it runs Triton's kernels meanwhile",
)
"""Of those that generate it in C++."""
TRITON = metadata.version("triton") if find_spec("triton") else ""
INTERPRETED = pytest.mark.skipif(
    TRITON == "" or (TRITON < "3.7" and metadata.version("numpy") >= "2.4"),
    reason="needs Triton's interpreter, which takes numpy 2.4 from Triton 3.7 on",
)
"""Of tests that run kernels in Triton's interpreter."""
CPP = Config.of("cpp", "packed_gemm", **{f"{what}_{size}": 0 for what in ("threads", "blocks") for size in "mnk"})
INT8PACK = Config.of("aten", "int8pack_mm")
PROTOCOL = Protocol("host", "cold", 1, 10, version=3)


def rows(problem: Problem, times: Mapping[Config, float], aten_us: float = 100.0) -> list[Measurement]:
    """Measurements of one problem on this CPU: microseconds by config, ATen included."""
    device, toolchain = detect.cpu(torch.get_num_threads()), installed("cpu")
    assert toolchain is not None
    return [
        Measurement(problem, config, device, PROTOCOL, toolchain, "test", Status.OK, Times(us, us, us, 10, aten_us))
        for config, us in {ATEN: aten_us, **times}.items()
    ]


def problems(stats: Mapping[str, Any] | None = None) -> list[str]:
    """The problems that were compiled, one per GEMM."""
    entries = (stats or gemmdb.inductor.stats())["products"]
    return [entry["problem"] for entry in entries for _ in range(entry["count"])]


def lowered(stats: Mapping[str, Any] | None = None) -> list[Config]:
    """The configs that were lowered, one per GEMM."""
    entries = (stats or gemmdb.inductor.stats())["products"]
    return [Config.parse(entry["config"]) for entry in entries for _ in range(entry["count"])]


def compiled(model: Any, *inputs: Any, **options: Any) -> Any:
    """What the compiled model returns."""
    torch._dynamo.reset()
    return torch.compile(model, **options)(*inputs)


def left_alone(problem: Problem) -> None:
    """A chooser that leaves each GEMM to Inductor."""


def checked(model: Any, *inputs: Any, **patches: Any) -> dict[str, Any]:
    """Compile a model without gradients, under settings of Inductor, and compare what it returns with eager's. Returns
    `stats()`."""
    with torch.no_grad(), inductor_config.patch(**patches):
        close(compiled(model, *inputs), model(*inputs))
    return gemmdb.inductor.stats()


def forced(config: Any, model: Any, *inputs: Any, **patches: Any) -> dict[str, Any]:
    """As `checked`, with a forced config, or what a function of the Problem says; None leaves each GEMM alone."""
    with gemmdb.inductor.force(config or left_alone):
        return checked(model, *inputs, **patches)


def only(stats: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The one kind of GEMM that was compiled."""
    (entry,) = (stats or gemmdb.inductor.stats())["products"]
    return dict(entry)


def run(program: str, environment: Mapping[str, str] | None = None, arguments: Sequence[str] = ()) -> Any:
    """Run a program in a process of its own; returns the JSON of the last line that it prints."""
    # A fifth of the time that torch's import takes is for collections.
    prelude = "import gc, json, os, sys\ngc.set_threshold(100_000)\n"
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", prelude + textwrap.dedent(program), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-4000:]
    return json.loads(result.stdout.strip().splitlines()[-1])


def forked(program: str, environment: Mapping[str, str] | None = None, arguments: Sequence[str] = ()) -> Any:
    """As `run`, without five seconds of imports: forked from a process that imported torch, Inductor and gemmdb."""
    with _STARTING:
        environ = {**os.environ, **(environment or {})}
    source = f"import json, os, sys\nsys.argv = ['-c', *{list(arguments)!r}]\n{textwrap.dedent(program)}"
    done = _forked(source, environ, 300)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


SCRIPT = """
import atexit, os, runpy, sys, warnings
import torch
os.chdir({folder!r})
warnings.simplefilter("ignore")
if threads := os.environ.get("OMP_NUM_THREADS"):
    torch.set_num_threads(int(threads))
sys.argv = [{path!r}]
sys.path.insert(0, os.path.dirname({path!r}))
try:
    runpy.run_path({path!r}, run_name="__main__")
finally:
    atexit._run_exitfuncs()
"""


def script(path: Path, folder: Path, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """As `python -W ignore path` in that folder, with these variables alone, forked as above."""
    return _forked(SCRIPT.format(path=str(path.resolve()), folder=str(folder)), environ, 900)


def _forked(source: str, environ: Mapping[str, str], limit_s: float) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        prelude = textwrap.dedent(f"""
            import os
            for path, number in (({str(out)!r}, 1), ({str(err)!r}, 2)):
                os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY), number)
            os.environ.clear()
            os.environ.update({dict(environ)!r})
        """)
        process = _FORKS.Process(target=exec, args=(prelude + source, {"__name__": "__main__"}))
        _start(process)
        process.join(limit_s)
        process.kill()
        process.join()
        assert process.exitcode is not None
        return subprocess.CompletedProcess(source, process.exitcode, out.read_text(), err.read_text())


def _start(process: Any) -> None:
    """Fork it. The first time that starts what is forked from, which must find this package, and have the threads of
    this process also where a test of few threads comes first."""
    with _STARTING, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "tests"))
        patch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
        process.start()


UNPACKED = """
    import torch
    results = []
    for name, inputs in torch.load(sys.argv[1]):
        package = torch._inductor.aoti_load_package(name)
        results.append([package(*each) for each in inputs])
    assert not any(name.split(".")[0] == "gemmdb" for name in sys.modules)
    torch.save(results, sys.argv[2])
    print("0")
"""


def unpacked(package: Any, *inputs: tuple[Any, ...]) -> list[Any]:
    """What a package of AOTInductor returns for each tuple of inputs, in a process without gemmdb."""
    return unpacked_all([(package, inputs)])[0]


def unpacked_all(packages: Sequence[tuple[Any, Sequence[tuple[Any, ...]]]]) -> list[list[Any]]:
    """As `unpacked` for each package, all in one process."""
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder, "given.pt"), Path(folder, "found.pt")
        torch.save([(str(package), list(inputs)) for package, inputs in packages], given)
        # Not forked: what is forked from may have gemmdb.
        run(UNPACKED, {"PYTHONPATH": ""}, [str(given), str(found)])
        return list(torch.load(found))


def close(found: Any, wanted: Any) -> None:
    """Equal within the tolerance of the dtype, relative to the largest value."""
    bound = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 5e-3}.get(wanted.dtype, 0.0)
    error = (found.double() - wanted.double()).abs().max().item() if wanted.numel() else 0.0
    largest = wanted.double().abs().max().item() if wanted.numel() else 0.0
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    assert error <= bound * max(largest, 1e-6), (error, largest)


def found_without_gpu(file: str) -> Any:
    """What `found()` of the test in `file` returns in a process that pretends to have a GPU."""
    path = Path(file)
    program = f"sys.path.insert(0, {str(path.parent)!r})\nfrom kit import no_gpu\nfrom {path.stem} import found"
    return forked(f"{program}\nprint(json.dumps(found()))")
