"""Libraries in cuBLASLt's place, where there is none: one that multiplies nothing and remembers what it was asked, and
one in C that multiplies on the CPU."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable
from ctypes import POINTER, c_size_t, c_uint32, c_uint64, cast
from pathlib import Path
from typing import Any

import pytest

from gemmdb.cublaslt import library
from gemmdb.cublaslt.library import DESCRIPTION, Heuristic

STATUS_NOT_SUPPORTED = 15


def built(folder: Path) -> Path:
    """Compile the library in C. A process that has loaded it takes it for torch's own."""
    made = folder / "libcublasLt.so.13"
    source = Path(__file__).with_suffix(".c")
    flags = ["-shared", "-fPIC", "-O2", f"-Wl,-soname,{made.name}"]
    subprocess.run([os.environ.get("CC", "cc"), *flags, str(source), "-o", str(made), "-lm"], check=True)
    return made


class Library:
    """Each function returns success, or what `statuses` says of it. `workspace`: the bytes that an algorithm needs."""

    def __init__(self, workspace: int = 0, **statuses: int) -> None:
        self.workspace, self.statuses = workspace, statuses
        self.calls: list[tuple[Any, ...]] = []
        """The arguments of each matrix multiplication."""
        self.biases: dict[int, int] = {}
        """The address of the bias in each descriptor that exists."""
        self.epilogues: dict[int, int] = {}
        """The epilogue of each descriptor."""
        self.changed: list[int] = []
        """Descriptors whose bias was set twice."""
        self._made = 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cublasLt"):
            raise AttributeError(name)
        return lambda *arguments: self._answer(name, arguments)

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> int:
        if name == "cublasLtMatmul":
            self.calls.append(arguments)
        elif name == "cublasLtMatmulAlgoCheck":
            cast(arguments[-1], POINTER(Heuristic)).contents.workspace = self.workspace
        elif name == "cublasLtMatmulDescDestroy":
            self.biases.pop(arguments[0].value, None)
        elif name.endswith("Create"):
            self._made += 4096
            cast(arguments[0], POINTER(c_size_t)).contents.value = self._made
        elif name == "cublasLtMatmulDescSetAttribute" and arguments[1] == DESCRIPTION["epilogue"]:
            self.epilogues[arguments[0].value] = cast(arguments[2], POINTER(c_uint32)).contents.value
        elif name == "cublasLtMatmulDescSetAttribute" and arguments[1] == DESCRIPTION["bias_pointer"]:
            made = arguments[0].value
            if made in self.biases:
                self.changed.append(made)
            self.biases[made] = cast(arguments[2], POINTER(c_uint64)).contents.value
        return self.statuses.get(name, 0)

    def cublasLtGetVersion(self) -> int:
        return 130100


def instead(patch: pytest.MonkeyPatch, found: Library | None) -> None:
    """For one test, this is the library that torch has loaded."""
    patch.setattr(library, "loaded", lambda: found)
    patch.setattr(library, "handle", functools.cache(library.handle.__wrapped__))
