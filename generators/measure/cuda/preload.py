"""Preload the imports of code-generating processes in the process that they fork from. The imports take five CPU
seconds, which a hundred processes would otherwise each spend at the start. They must not touch a GPU: a driver that was
initialized before a fork does not work after it."""

import contextlib
import importlib
import os

# Otherwise torch.cuda.is_available() initialises the driver, and some modules of torch call that on import.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
# Inductor would start its own processes.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
for _name in (
    "torch._inductor.compile_fx",
    "torch._inductor.codegen.cuda_combined_scheduling",
    "torch._inductor.codegen.wrapper",
    "torch.fx.experimental.proxy_tensor",
    "triton.compiler",
    "gemmdb.generators.measure.cuda.emitted",
    "gemmdb.inductor.lower.adapter.emission",
    "gemmdb.inductor.entry.enable",
):
    # A process imports what is missing, and the first artifact that needs it reports the reason.
    with contextlib.suppress(Exception):
        importlib.import_module(_name)
