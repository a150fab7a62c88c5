"""Which ptxas assembles Triton's kernels: the one that Inductor has Triton use. Triton's own may be of another version.

Programs run code of Inductor's, so all that is measured is assembled by the same program. It is also part of the key of
Triton's cache: with another ptxas, a process compiles again what others have compiled for it.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

VARIABLE = "TRITON_PTXAS_PATH"
"""Where Triton looks for ptxas. Inductor sets it before it compiles a kernel (`_set_triton_ptxas_path`)."""


def choose() -> None:
    """Let this process and all that it starts use the ptxas that comes with torch, if there is one, unless the user
    has named another. Triton must not have been asked for ptxas before."""
    found = importlib.util.find_spec("torch")
    if VARIABLE not in os.environ and found is not None and found.origin and (path := beside(Path(found.origin))):
        os.environ[VARIABLE] = str(path)


def beside(package: Path) -> Path | None:
    """The ptxas of the torch whose `__init__.py` is `package`; None if it has none."""
    path = package.parent / "bin" / "ptxas"
    return path if path.is_file() and os.access(path, os.X_OK) else None
