"""The C++ kernels of a graph, compiled at once: most of what a compiler does for one of them is for the headers.

Only torch's own code is compiled differently, and called through ctypes; what gemmdb does is as it is without this."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch._inductor import async_compile, codecache

INCLUDE = re.compile(r"^[ \t]*#include .*\n", re.MULTILINE)
ENTRY = re.compile(r"\bkernel(?=\()")
ORIGINAL = async_compile.AsyncCompile.cpp_pybinding
BOUND = codecache.CppPythonBindingsCodeCache


class Library(codecache.CppCodeCache):  # type: ignore[misc]  # of torch, whose type is skipped
    """As Inductor compiles a kernel with bindings, without the bindings."""

    cache: dict[str, Any] = {}  # noqa: RUF012  as torch declares it
    cpp_compile_command_flags = BOUND.cpp_compile_command_flags


class Unit:
    """The kernels of one graph, each in a namespace of its own."""

    def __init__(self) -> None:
        self.includes: dict[str, None] = {}
        self.sources: list[str] = []
        self.library: Any = None

    def add(self, argtypes: Sequence[str], source: str) -> Callable[[], Callable[..., None]]:
        """What compiles all kernels, if that has not been done, and returns this one."""
        assert self.library is None, "a kernel came after the graph was compiled"
        number = len(self.sources)
        self.includes |= dict.fromkeys(INCLUDE.findall(source))
        body = ENTRY.sub(f"kernel_{number}", INCLUDE.sub("", source))
        self.sources.append(f"namespace unit_{number} {{\n{body}\n}}\n")
        return lambda: self._function(number, argtypes)

    def _function(self, number: int, argtypes: Sequence[str]) -> Callable[..., None]:
        if self.library is None:
            self.library = Library.load("".join([*self.includes, *self.sources]))
        function = getattr(self.library, f"kernel_{number}")
        function.restype = None
        function.argtypes = [_kind(argtype) for argtype in argtypes]
        # What is not a number is a tensor.
        return lambda *given: function(*(each if isinstance(each, int | float) else each.data_ptr() for each in given))


def _kind(argtype: str) -> Any:
    if argtype.endswith("*"):
        return ctypes.c_void_p
    return {"float": ctypes.c_float, "uintptr_t": ctypes.c_void_p}.get(argtype, ctypes.c_int64)


def _begun(compiler: Any, argtypes: Sequence[str], source: str) -> Any:
    if async_compile.get_compile_threads() <= 1:  # Nothing is waited for then.
        return ORIGINAL(compiler, argtypes, source)
    unit = compiler.__dict__.setdefault("unit", Unit())
    return codecache.LambdaFuture(unit.add(argtypes, source))


@contextmanager
def compiled_at_once() -> Iterator[None]:
    """Inside, the C++ kernels of a graph are one translation unit. The candidates of a search, each of which is one by
    itself, have a precompiled header too."""
    with (
        mock.patch.object(async_compile.AsyncCompile, "cpp_pybinding", _begun),
        mock.patch.object(codecache.CppCodeCache, "_get_uncompiled_header", BOUND._get_uncompiled_header),
    ):
        yield
