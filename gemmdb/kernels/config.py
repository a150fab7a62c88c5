"""Config: a kernel and its parameters. Frozen, hashable, and valid by construction."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gemmdb.errors import InputError
from gemmdb.kernels.kernel import Kernel, Value
from gemmdb.kernels.registry import KERNELS
from gemmdb.key import canonical
from gemmdb.key.canonical import lazy
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected

_INTEGER = re.compile(r"0|-?[1-9]\d{0,9}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True)
class Config:
    """A kernel of a backend with all of its parameters, sorted by name, and any of its optional ones.

    Raises InputError unless the kernel is registered in `gemmdb.kernels.registry`, all its parameters are given, and
    every value is in its domain. So a table cannot name anything else.
    """

    backend: str
    kernel: str
    params: tuple[tuple[str, Value], ...] = ()

    def __post_init__(self) -> None:
        known = KERNELS.get((self.backend, self.kernel))
        if known is None:
            raise InputError(f"unknown kernel {self.backend[:40]!r}/{self.kernel[:80]!r}")
        names = [name for name, _ in self.params]
        if names != sorted(known.params) and names != sorted({*known.params, *(set(names) & set(known.optional))}):
            raise InputError(f"{self.name} takes the parameters {sorted(known.params)}, got {str(names)[:300]}")
        for name, value in self.params:
            domain = known.params[name] if name in known.params else known.optional[name]
            if value not in domain:
                raise InputError(f"{self.name}: {name}={value!r:.80} is not in {domain}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Config) or type(other) is not type(self):
            return NotImplemented  # A subclass is measured differently.
        return self is other or (
            self.kernel == other.kernel and self.backend == other.backend and self.params == other.params
        )

    def __hash__(self) -> int:
        return self.key  # A lookup hashes configs hundreds of times, and the key is made once.

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.backend, self.kernel, self.params)

    @classmethod
    def of(cls, backend: str, kernel: str, **params: Value) -> Config:
        """A config with its parameters in any order."""
        return cls(backend, kernel, tuple(sorted(params.items())))

    @property
    def name(self) -> str:
        """`backend:kernel`."""
        return f"{self.backend}:{self.kernel}"

    @lazy
    def spec(self) -> Kernel:
        """The kernel's record in the registry."""
        return KERNELS[self.backend, self.kernel]

    @lazy
    def values(self) -> Mapping[str, Value]:
        """The parameters by name."""
        return dict(self.params)

    @lazy
    def text(self) -> str:
        """The canonical form, `cpp:packed_gemm blocks_k=4 ...`; `parse` reads it back."""
        return canonical.encode(self.name, self.params)

    @lazy
    def key(self) -> int:
        """The 64-bit key of the canonical form."""
        return canonical.key(self.text)

    def rejection(self, problem: Problem, device: Device, symbolic: Collection[str] = ()) -> Rejected | None:
        """Why it cannot run on `problem`, None when it can. `symbolic`: which of `m`, `n`, `k` are not fixed when the
        kernel is compiled."""
        kernel = self.spec
        if problem.a.dtype == "uint8" and problem.spec.integer and device.kind != "cpu":
            return Rejected(f"torch cannot multiply uint8 by int8 on {device.kind}")
        if (problem.int4 is not None or kernel.int4) and (rejected := self._reject_int4(problem)):
            return rejected
        if self != ATEN and (problem.op not in kernel.ops or device.kind not in kernel.devices):
            return Rejected(f"{self.name} does not solve {problem.op} on {device.kind}")
        return kernel.rejection(self, problem, device, symbolic)

    def _reject_int4(self, problem: Problem) -> Rejected | None:
        """A weight with groups has kernels of its own, and whole groups; ATen stands for what the program runs."""
        if problem.int4 is not None and (rejected := problem.int4.rejection(problem.n, problem.k)):
            return rejected
        if self == ATEN or self.spec.int4 == (problem.int4 is not None):
            return None
        return Rejected(
            f"{self.name} {'takes no weight without groups' if self.spec.int4 else 'takes no weight with groups'}"
        )

    def digest(self) -> str:
        """16 hexadecimal digits of the source that it is rendered from, or the release of the library that has the
        kernel. Empty for kernels without either, and if what has it is not installed."""
        found = self.spec.digest
        return found() if found is not None else ""

    def is_current(self, source: str) -> bool:
        """Whether a row whose toolchain says `source` was measured with the kernel as it is rendered now. True for rows
        that name no source, for kernels without one, and for those of a library whose release is unknown here."""
        now = self.digest()
        if not source or self.spec.digest is None or (self.spec.library and not now):
            return True
        equivalent = self.spec.equivalent
        while source in equivalent:
            source = equivalent[source]
        while now in equivalent:
            now = equivalent[now]
        return source == now

    @classmethod
    def parse(cls, text: str) -> Config:
        """The config of a canonical form; raises InputError unless `text` is exactly what `Config.text` writes."""
        head = text.partition(" ")[0]
        backend, colon, kernel = head.partition(":")
        if not colon or not _NAME.fullmatch(backend) or not _NAME.fullmatch(kernel):
            raise InputError(f"malformed config {text[:200]!r}")
        fields = canonical.decode(head, text)
        config = cls(
            backend,
            kernel,
            tuple((name, _value(name, value)) for name, value in fields.items()),
        )
        if config.text != text:
            raise InputError(f"not a canonical config: {text[:200]!r}")
        return config


ATEN = Config("aten", "default")
"""Inductor's default, unchanged: the reference that every other config must beat."""


def _value(name: str, value: str | None) -> Value:
    if value is None or not _NAME.fullmatch(name):
        raise InputError(f"malformed parameter {name[:80]!r}")
    return int(value) if _INTEGER.fullmatch(value) else value
