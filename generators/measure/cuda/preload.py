"""Imports what the processes that generate code need, once, in the process that they are forked from. The imports take
five processor seconds, which a hundred processes would otherwise each spend at the start. MODULES is only a warm-up: a
process imports whatever is missing from it."""

from __future__ import annotations

import contextlib
import importlib
import os

MODULES = (
    "torch._inductor.compile_fx",
    "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.codegen.wrapper",
    "torch.fx.experimental.proxy_tensor",
    "triton.compiler",
    "gemmdb.generators.measure.cuda.emitted",
    "gemmdb.inductor.lower.adapter.emission",
    "gemmdb.inductor.entry.enable",
)


def load() -> None:
    """Import everything without touching a GPU: a driver that was initialised before a fork does not work after it."""
    # Otherwise torch.cuda.is_available() initialises the driver, and some modules of torch call that on import.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # Inductor would start processes of its own.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    for name in MODULES:
        # The first artifact that needs a missing module reports it.
        with contextlib.suppress(Exception):
            importlib.import_module(name)


load()
