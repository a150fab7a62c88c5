"""Toolchain: the software that a measurement holds for, and for how long it holds."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from gemmdb.errors import InputError
from gemmdb.key import canonical
from gemmdb.key.canonical import lazy

_FIELDS = ("torch", "triton", "cuda", "cutlass", "driver", "gemmdb", "source")


@dataclass(frozen=True)
class Toolchain:
    """Versions, empty for software that was not involved. `source`: the hash of the kernel's source, for our kernels
    and templates. A row stays valid over releases that do not change its kernel."""

    torch: str = ""
    triton: str = ""
    cuda: str = ""
    cutlass: str = ""
    driver: str = ""
    gemmdb: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        for name in _FIELDS:
            if len(getattr(self, name)) > 80:
                raise InputError(f"toolchain: {name} is longer than 80 characters")

    __getstate__ = canonical.state

    @lazy
    def text(self) -> str:
        """The canonical form; `parse` reads it back."""
        return canonical.encode("toolchain", ((name, getattr(self, name)) for name in _FIELDS))

    @lazy
    def key(self) -> int:
        """The 64-bit key of the canonical form."""
        return canonical.key(self.text)

    @classmethod
    def parse(cls, text: str) -> Toolchain:
        """The toolchain of a canonical form; raises InputError unless `text` is what `Toolchain.text` writes."""
        part = canonical.decode("toolchain", text)
        if tuple(part) != _FIELDS:
            raise InputError(f"malformed toolchain {text[:200]!r}")
        toolchain = cls(**{name: value or "" for name, value in part.items()})
        if toolchain.text != text:
            raise InputError(f"not a canonical toolchain: {text[:200]!r}")
        return toolchain

    @lazy
    def klass(self) -> str:
        """The toolchain class that verdicts are pooled in.

        On a GPU the CUDA major, since the reference is cuBLAS; on a CPU the torch minor, since oneDNN, MKL and the C++
        template come with it.
        """
        if self.cuda:
            return f"cuda{self.cuda.split('.')[0]}"
        return f"cpu-torch{minor(self.torch)}"

    def compiles_as(self, other: Toolchain, backend: str) -> bool:
        """Whether both toolchains compile the same source for `backend` to practically the same kernel.

        Triton: the same major version. Minor releases may change a time a little, as drivers do, but if rows expired
        with them, tables would hold for only a few months. CUTLASS: the same version, since its headers are part of the
        kernel. An unknown version (not installed or not recorded) counts as equal.
        """
        if backend == "triton":
            return self._equal(major(self.triton), major(other.triton))
        if backend == "cutlass":
            return self._equal(self.cutlass, other.cutlass)
        return True

    @staticmethod
    def _equal(one: str, other: str) -> bool:
        return not one or not other or one == other


def major(version: str) -> str:
    """`3` of `3.6.0`."""
    return version.split(".")[0]


def minor(version: str) -> str:
    """`2.13` of `2.13.0+cpu`; the text itself if it is not a version."""
    match = re.match(r"(\d+\.\d+)", version)
    return match[1] if match else version


@functools.cache
def installed(kind: str) -> Toolchain | None:
    """The toolchain of this environment for devices of `kind`; None without torch, or if its build is not for such
    devices. It only reads the package's files and does not import torch."""
    torch = _version("torch")
    if torch is None:
        return None
    build = _torch_build()
    torch = build.get("__version__", torch)
    if kind == "cpu":
        return Toolchain(torch=torch, gemmdb=_version("gemmdb") or "")
    if kind == "cuda" and "cuda" not in build:
        return None
    return Toolchain(
        torch=torch,
        triton=_version("triton") or "",
        cuda=build.get("cuda", ""),
        cutlass=_version("nvidia-cutlass") or "",
        gemmdb=_version("gemmdb") or "",
    )


def _torch_build() -> dict[str, str]:
    """The string constants of `torch/version.py`: the metadata of a wheel from PyPI does not name its CUDA."""
    from importlib import metadata

    try:
        path = metadata.distribution("torch").locate_file("torch/version.py")
        text = Path(str(path)).read_text()
    except OSError:
        return {}
    return dict(re.findall(r"^(\w+)(?::[^=\n]*)? = '([^'\n]+)'", text, re.MULTILINE))


def _version(package: str) -> str | None:
    # Imported where it is used: it takes longer than all of gemmdb's own modules.
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
