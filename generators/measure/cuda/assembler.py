"""Which ptxas assembles Triton's kernels: the one that Inductor has Triton use. Triton's own may be of another version.

Programs run code of Inductor's, so all that is measured is assembled by the same program. It is also part of the key of
Triton's cache: with another ptxas, a process compiles again what others have compiled for it.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

VARIABLE = "TRITON_PTXAS_PATH"
"""Where Triton looks for ptxas."""
SETTER = Path("_inductor", "runtime", "compile_tasks.py")
"""The file of torch that sets it before a kernel is compiled (`_set_triton_ptxas_path`), from a path relative to its
own: torch 2.11 has it in `torch/bin`, torch 2.13 in `torch/_inductor/bin`."""
_RELATIVE = re.compile(r"parents\[(\d)\] / \"bin\" / \"ptxas\"")


def choose() -> None:
    """Let this process and all that it starts use the ptxas that Inductor uses, if that is not Triton's own, unless the
    user has named another. Triton must not have been asked for ptxas before. torch is not imported."""
    found = importlib.util.find_spec("torch")
    if VARIABLE not in os.environ and found is not None and found.origin and (path := of(Path(found.origin).parent)):
        os.environ[VARIABLE] = str(path)


def of(torch: Path) -> Path | None:
    """The ptxas that the Inductor in the folder `torch` uses; None for Triton's own."""
    setter = torch / SETTER
    found = _RELATIVE.search(setter.read_text()) if setter.is_file() else None
    if found is None:
        return None
    path = setter.parents[int(found[1])] / "bin" / "ptxas"
    return path if path.is_file() and os.access(path, os.X_OK) else None
