"""Our own Triton kernels as jinja2 templates, one source for the generator and for Inductor.

A template is written against the hooks that Inductor gives a TritonTemplate (`def_kernel`, `size`, `stride`,
`store_output`) and reads its parameters as names, so that it renders as a kernel of its own and as a choice whose
epilogue Inductor fuses. The standard library suffices to read a template; rendering takes jinja2.
"""

from __future__ import annotations

import functools
import hashlib
from importlib import resources

TEMPLATES = ("tile", "gemv")


@functools.cache
def source(name: str) -> str:
    """The jinja2 source of the template of that name, one of TEMPLATES."""
    return _read("dequant") + _read(name)


@functools.cache
def digest(name: str) -> str:
    """16 hexadecimal digits that change with the template's source: rows of it hold while they stay the same."""
    return hashlib.sha256(source(name).encode()).hexdigest()[:16]


def _read(name: str) -> str:
    return (resources.files(__name__) / f"{name}.py.jinja").read_text()
