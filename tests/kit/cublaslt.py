"""Libraries in cuBLASLt's place, where there is none: one that multiplies nothing and remembers what it was asked, and
one in C that multiplies on the CPU."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from ctypes import POINTER, byref, c_int32, c_size_t, cast, string_at
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemmdb.cublaslt import library
from gemmdb.cublaslt.library import CONFIG, DESCRIPTION, Algorithm, Heuristic
from kit.gpu import ALGORITHM

if TYPE_CHECKING:
    import pytest

STATUS_NOT_SUPPORTED = 15
_NAMES = {number: name for name, number in DESCRIPTION.items()}


def built(folder: Path) -> Path:
    """Compile the library in C. A process that has loaded it, and no other before, takes it for torch's own."""
    made = folder / "libcublasLt.so.13"
    source = Path(__file__).with_suffix(".c")
    flags = ["-shared", "-fPIC", "-O2", f"-Wl,-soname,{made.name}"]
    subprocess.run([os.environ.get("CC", "cc"), *flags, str(source), "-o", str(made), "-lm"], check=True)
    return made


def opened(path: str) -> ctypes.CDLL | None:
    """Load the library in C. To what runs in Python, it is the one that torch has loaded from now on; none is if `path`
    is empty. Torch's build for CUDA has loaded its own."""
    found = library._declared(ctypes.CDLL(path)) if path else None
    library.loaded = lambda: found
    return found


class Library:
    """Each function returns success, or what `statuses` says of it. `workspace`: the bytes that an algorithm needs."""

    named: tuple[Mapping[str, int], ...] = (ALGORITHM, {**ALGORITHM, "tile": 601})
    """The attributes of the algorithms of its heuristic."""

    def __init__(self, workspace: int = 0, **statuses: int) -> None:
        self.workspace, self.statuses = workspace, statuses
        self.calls: list[tuple[Any, ...]] = []
        """The arguments of each matrix multiplication."""
        self.described: dict[int, dict[str, int]] = {}
        """What was set in each descriptor that exists, by the names of `library.DESCRIPTION`."""
        self.changed: list[int] = []
        """Descriptors in which something was set twice."""
        self._made = 0

    @property
    def biases(self) -> dict[int, int]:
        """The address of the bias in each descriptor that exists."""
        return {made: found["bias_pointer"] for made, found in self.described.items() if "bias_pointer" in found}

    @property
    def epilogues(self) -> dict[int, int]:
        """The epilogue of each descriptor that exists."""
        return {made: found["epilogue"] for made, found in self.described.items() if "epilogue" in found}

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cublasLt"):
            raise AttributeError(name)
        return lambda *arguments: self._answer(name, arguments)

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> int:
        if name == "cublasLtMatmul":
            self.calls.append(arguments)
        elif name == "cublasLtMatmulAlgoGetHeuristic":
            count, found = arguments[-3], cast(arguments[-2], POINTER(Heuristic))
            named = self.named[:count]
            for place, attributes in enumerate(named):
                ctypes.memmove(byref(found[place].algorithm), _stored(attributes), ctypes.sizeof(Algorithm))
            cast(arguments[-1], POINTER(c_int32)).contents.value = len(named)
        elif name == "cublasLtMatmulAlgoInit":
            ctypes.memmove(arguments[-1], _stored({"algo": arguments[-2]}), ctypes.sizeof(Algorithm))
        elif name == "cublasLtMatmulAlgoConfigSetAttribute":
            made, what, value, size = arguments
            ctypes.memmove(_place(made, what), value, size)
        elif name == "cublasLtMatmulAlgoConfigGetAttribute":
            made, what, value, size, _ = arguments
            ctypes.memmove(value, _place(made, what), size)
        elif name == "cublasLtMatmulAlgoCheck":
            cast(arguments[-1], POINTER(Heuristic)).contents.workspace = self.workspace
        elif name == "cublasLtMatmulDescDestroy":
            self.described.pop(arguments[0].value, None)
        elif name.endswith("Create"):
            self._made += 4096
            cast(arguments[0], POINTER(c_size_t)).contents.value = self._made
        elif name == "cublasLtMatmulDescSetAttribute":
            made, what, value, size = arguments
            known = self.described.setdefault(made.value, {})
            if _NAMES[what] in known:
                self.changed.append(made.value)
            known[_NAMES[what]] = int.from_bytes(string_at(value, size), sys.byteorder)
        return self.statuses.get(name, 0)

    def cublasLtGetVersion(self) -> int:
        return 130100


def _stored(attributes: Mapping[str, int]) -> Any:
    """An algorithm here: each attribute at the place of its number."""
    places = {CONFIG[name][0]: value for name, value in attributes.items()}
    return (c_int32 * 16)(*(places.get(place, 0) for place in range(16)))


def _place(algorithm: Any, number: int) -> int:
    return ctypes.addressof(algorithm._obj) + 4 * number


def instead(patch: pytest.MonkeyPatch, found: Library | None) -> None:
    """For one test, this is the library that torch has loaded."""
    patch.setattr(library, "loaded", lambda: found)
    patch.setattr(library, "handle", functools.cache(library.handle.__wrapped__))
