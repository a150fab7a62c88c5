"""Candidates as the code that Inductor emits for them, which users run.

A compile pool process generates the output code of a problem's program with one config forced, on operands without
memory, and compiles its kernels into the on-disk caches; the timing process loads both. The call does what a user's
graph does: it allocates the output, which costs nothing when a CUDA graph replays, and runs every kernel.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from gemmdb.errors import GemmdbError
from gemmdb.generators.measure.cuda import compilers
from gemmdb.generators.measure.cuda.artifacts import Emission
from gemmdb.generators.measure.operands import Operands, blank
from gemmdb.generators.measure.program import Product, check_lowered, set_numerics
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.int4 import MXFP4, PLAIN
from gemmdb.key.problem import Problem

Tensors = dict[str, torch.Tensor]


def write(problem: Problem, config: Config, capability: int) -> None:
    """Generate the code of a config for a problem and compile its kernels, unless the code exists. Raises as
    `generate`."""
    share_gpus()
    path = path_of(problem, config)
    if path.exists():
        return
    from gemmdb.inductor.lower.adapter import emission

    with emission.compiling_for(capability):
        source = generate(problem, config)
        for name, text in emission.triton_kernels(source):
            emission.compile_kernel(name, text)
        for text in emission.cuda_kernels(source):
            emission.compile_cuda(text)
    path.parent.mkdir(parents=True, exist_ok=True)
    compilers.write(path, source)


def path_of(problem: Problem, config: Config) -> Path:
    """Return the path of the code. It changes with gemmdb's own sources and with torch."""
    _prepare()
    from gemmdb.inductor.lower.adapter.slots import code_digest

    key = f"{Emission(problem, config).key} {code_digest()} {torch.__version__}"
    surroundings = hashlib.sha256(key.encode()).hexdigest()[:32]
    return Path(os.environ["TRITON_CACHE_DIR"]) / "gemmdb" / f"emitted_{surroundings}.py"


def generate(problem: Problem, config: Config) -> str:
    """Return the output code of a problem's program with `config` forced on its GEMM. Raises GemmdbError if Inductor
    did not see this problem or did not take this config, and whatever Inductor raises."""
    _prepare()
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    from gemmdb.inductor import force
    from gemmdb.inductor.lower.adapter import emission
    from gemmdb.inductor.observe.journal import JOURNAL

    if problem.constant:
        raise GemmdbError("a constant weight is part of the compiled graph")
    set_numerics(problem)
    JOURNAL.clear()
    plain = Config(config.backend, config.kernel, config.params)
    with torch.no_grad(), emission.no_gpu_context(), force(plain):
        with FakeTensorMode():
            product = Product(problem, blank(problem, torch.device("cuda")), _is_replaced(problem, plain))
            graph = make_fx(product)(*product.inputs)
        source, seen = emission.output_code(graph, list(product.inputs), lambda: list(JOURNAL.pending()))
    check_lowered(problem, plain, seen)
    return source


def _is_replaced(problem: Problem, config: Config) -> bool:
    """Return whether the pattern matcher cannot find the weight in the traced program: an engine's operator contains
    torchao's plain weight, and MXFP4's table of values has none in a fake tensor."""
    return problem.int4 is not None and problem.int4.packing in (PLAIN, MXFP4) and config != ATEN


def ready(problem: Problem, config: Config) -> bool:
    """Whether the code of a config was generated, and Inductor is loaded; loading it is too slow for live tuning."""
    return "gemmdb.inductor.lower.adapter.emission" in sys.modules and path_of(problem, config).exists()


def bind(problem: Problem, config: Config, copies: Sequence[Tensors]) -> tuple[Callable[[int], torch.Tensor], float]:
    """Return the emitted code bound to each copy of the operands, and the seconds that loading took. The call returns
    its output, which is in new memory. Raises if the code cannot be loaded."""
    start = time.perf_counter()
    function = load(problem, config)
    inputs = [Product(problem, Operands.of(tensors)).inputs for tensors in copies]

    def call(index: int) -> torch.Tensor:
        output: torch.Tensor = function(list(inputs[index]))[0]
        return output

    return call, time.perf_counter() - start


def load(problem: Problem, config: Config) -> Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]:
    """Return the function of a config's output code with its kernels loaded, once per process. Raises if that fails."""
    return _loaded(path_of(problem, config))


@functools.lru_cache(maxsize=256)
def _loaded(path: Path) -> Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]:
    from gemmdb.inductor.lower.adapter import emission

    if not path.exists():
        raise GemmdbError("the code was not generated")
    return emission.load(path)


def _prepare() -> None:
    """Keep Inductor from starting its own processes, and from moving Triton's cache when it first compiles."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    os.environ.setdefault("TRITON_CACHE_DIR", str(Path.home() / ".triton" / "cache"))


def begin() -> None:
    """Preload the imports of the first load, which take seconds."""
    _prepare()
    importlib.import_module("gemmdb.inductor.lower.adapter.emission")


def share_gpus() -> None:
    """Restrict this process to one GPU of the host, chosen by process number. Nothing runs there. But if a torch
    version creates a CUDA context to generate code (half a gigabyte), a hundred processes would not fit on one GPU."""
    if torch.cuda.is_initialized():
        return
    outer = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    visible = outer.split(",") if outer else [str(index) for index in range(torch.cuda.device_count())]
    if len(visible) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[os.getpid() % len(visible)]
