"""What those that generate code import, imported once: by the process that they are forked from. Imports take it five
seconds of a processor, which a hundred processes that start at once would each take on their own."""

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
    "gemmdb.inductor.adapter.emitting",
    "gemmdb.inductor.entry",
)


def load() -> None:
    """Import everything, without that a GPU is asked for anything: a driver that was initialised before a fork refuses
    to work after it."""
    # Else torch.cuda.is_available() initialises it, which some modules of torch ask when they are imported.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # Inductor would start processes of its own.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    for name in MODULES:
        # What cannot be imported is told by the first artifact that needs it.
        with contextlib.suppress(Exception):
            importlib.import_module(name)


load()
