"""Inductor's code for an H200 in a process that has none: nothing is compiled, run or timed.

Importing this replaces what torch and Triton ask of a driver, so import it in a process of its own. Only code with
Triton's kernels needs Triton, and torch's build for CUDA."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from torch._dynamo.device_interface import CudaInterface
from torch._dynamo.source import ConstantSource
from torch._inductor import config as inductor_config
from torch._inductor import scheduler
from torch._inductor.fx_passes import fuse_attention
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils import _triton

from gemmdb.devices import detect
from gemmdb.hit import Hit
from gemmdb.inductor import force
from gemmdb.inductor.entry import active, enable
from gemmdb.inductor.lower.adapter import emission
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.settings import Policy
from kit.devices import H200
from kit.sessions import FakeSession

PROPERTIES = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=150 * 2**30, warp_size=32,
    L2_cache_size=60 * 2**20, max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536,
    shared_memory_per_block=49152, shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472,
    is_integrated=0, gcnArchName="", uuid="0", clock_rate=1980000, memory_clock_rate=3201000, memory_bus_width=6144,
)  # fmt: skip
ANSWERS = {
    "is_available": True, "current_device": 0, "get_device_properties": PROPERTIES, "_exchange_device": -1,
    "_maybe_exchange_device": -1, "get_rng_state": torch.zeros(16, dtype=torch.uint8),
}  # fmt: skip
"""What is answered by name, whatever the arguments."""


class Driver:
    """What Triton asks of the driver while code is generated."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> Any:
        return torch.device("cuda", 0)

    def get_current_device(self) -> int:
        return 0


def pretend() -> None:
    """From now on, torch and Triton take this process for one with an H200."""
    for name, answer in ANSWERS.items():
        for owner in (torch.cuda, CudaInterface, CudaInterface.Worker):
            if hasattr(owner, name):
                setattr(owner, name, staticmethod(_always(answer)))
    if find_spec("triton") is None:
        scheduler.has_triton = _always(True)
        _triton.triton_hash_with_backend = _always("")
    else:
        import triton

        triton.runtime.driver.set_active(Driver())
    # Tracing calls it outside of the fake mode, where it would look for the device.
    torch.Tensor.contiguous = _contiguous
    # It traces its patterns on the GPU.
    fuse_attention._sfdp_init = _always(None)
    for name in ("cuda", "native"):
        setattr(detect, name, _always(H200))


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: answer


def _contiguous(tensor: Any) -> Any:
    return tensor.clone(memory_format=torch.contiguous_format)


def output_code(model: Callable[..., Any], config: Any, *inputs: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """The output code of `model` with `config` forced on its GEMMs (None: default mode), and the events of these.
    `inputs`: the sizes of each, and its dtype at the end."""
    JOURNAL.clear()
    steered = nullcontext() if config is None else force(config)
    with torch.no_grad(), inductor_config.patch(compile_threads=1), emission.no_gpu_context(), steered:
        with FakeTensorMode():
            made = [torch.empty(sizes, dtype=dtype, device="cuda") for *sizes, dtype in inputs]
            graph = make_fx(model)(*made)
        return emission.output_code(graph, made, lambda: list(JOURNAL.pending()))


def output_code_of_rows(
    model: Callable[..., Any], parts: Any, *inputs: tuple[Any, ...], without_cutlass: Any = ()
) -> tuple[str, list[Any]]:
    """Like `output_code`, with any number of rows from 2 to 4096 in place of each size `m`, for which the `parts` of a
    Hit are served, and the first of them for fixed rows; `without_cutlass`: those that take the place of unavailable
    ones."""

    def served(parts: Any) -> Any:
        def find(query: Any) -> Hit | None:
            return Hit("exact", parts[0][1], 1.0, 2.0, "", {}, parts if "m" in query.ranges else ()) if parts else None

        return find

    session = FakeSession(served(parts), Policy(), None, without_cutlass=served(without_cutlass))
    return code_in(session, model, *inputs)


def code_in(session: FakeSession | None, model: Callable[..., Any], *inputs: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """Like `output_code`, with what a session answers (None: default mode), and any number of rows from 2 to 4096 in
    place of each size `m`."""
    JOURNAL.clear()
    if session is not None:
        enable.install()
    env = ShapeEnv()
    symbol = env.create_symbol(48, source=ConstantSource("rows"), dynamic_dim=DimDynamic.DYNAMIC)
    env.constrain_symbol_range(symbol, 2, 4096)
    rows = env.create_symintnode(symbol, hint=48)
    patched = inductor_config.patch(compile_threads=1)
    used = nullcontext() if session is None else active.use(session)
    with torch.no_grad(), patched, emission.no_gpu_context(), used, FakeTensorMode(shape_env=env):
        made = [
            torch.empty([rows if size == "m" else size for size in sizes], dtype=dtype, device="cuda")
            for *sizes, dtype in inputs
        ]
        graph = make_fx(model)(*made)
        return emission.output_code(graph, made, lambda: list(JOURNAL.pending()))


def kernels(code: str) -> list[str]:
    """The kernels that an output code calls: Triton's by name, those of libraries as `extern_kernels.mm`."""
    called = code.partition("async_compile.wait")[2]
    return re.findall(r"def (triton_\w+)\(", code) + re.findall(r"extern_kernels\.\w+", called)


pretend()
