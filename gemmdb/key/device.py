"""Device: the processor that a measurement holds for. Its identity is the key; its figures are not compared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gemmdb.errors import InputError
from gemmdb.key import canonical
from gemmdb.key.canonical import lazy

KINDS = ("cpu", "cuda", "hip")
_MAX_NUMBER = 2**31 - 1
"""The most units or GiB: every reader of a device can hold this number, in a float or in 32 bits."""
_ARCH = re.compile(r"[a-z][a-z0-9_]{1,15}")


@dataclass(frozen=True)
class Device:
    """One kind of processor: MIG slices and memory variants share marketing names, so size and slice are part of the
    identity.

    `arch`: `sm90`, `gfx942`, or `cpu`. `sku`: the vendor's name. `units`: SMs of a GPU, threads used of a CPU.
    `memory_gib`: rounded, 0 for a CPU. `mig`: a slice of a GPU. `isa`: vector level of a CPU (`avx512_bf16`), else `-`.
    `figures`: public or measured figures by name (`smem_bytes`, `l2_bytes`, `copy_gb_per_s`, ...), not compared.
    """

    kind: str
    arch: str
    sku: str
    units: int
    memory_gib: int = 0
    mig: bool = False
    isa: str = "-"
    figures: Mapping[str, float] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS or not _ARCH.fullmatch(self.arch):
            raise InputError(f"no such device: kind {self.kind[:40]!r}, arch {self.arch[:40]!r}")
        words = 0 < len(self.sku) <= 120 and len(self.isa) <= 40 and f"{self.sku}{self.isa}".isprintable()
        if not words or not 0 < self.units <= _MAX_NUMBER or not 0 <= self.memory_gib <= _MAX_NUMBER:
            raise InputError(f"no such device: {self.sku[:120]!r} with {self.units} units, {self.memory_gib} GiB")

    __getstate__ = canonical.state

    @lazy
    def text(self) -> str:
        """The canonical form of the identity; `parse` reads it back."""
        return canonical.encode("device", (
            ("kind", self.kind), ("arch", self.arch), ("sku", self.sku), ("units", self.units),
            ("memory_gib", self.memory_gib), ("mig", self.mig), ("isa", self.isa),
        ))  # fmt: skip

    @lazy
    def key(self) -> int:
        """The 64-bit key of the canonical form."""
        return canonical.key(self.text)

    @classmethod
    def parse(cls, text: str, figures: Mapping[str, float] | None = None) -> Device:
        """The device of a canonical form; raises InputError unless `text` is exactly what `Device.text` writes."""
        part = canonical.decode("device", text)
        try:
            device = cls(
                str(part["kind"]), str(part["arch"]), str(part["sku"]), int(part["units"] or 0),
                int(part["memory_gib"] or 0), part["mig"] == "1", str(part["isa"]), figures or {},
            )  # fmt: skip
        except (KeyError, ValueError) as error:
            raise InputError(f"malformed device {text[:200]!r}") from error
        if device.text != text:
            raise InputError(f"not a canonical device: {text[:200]!r}")
        return device

    @property
    def slug(self) -> str:
        """A file name stem: `sm90-nvidia-h200`, `cpu-amd-epyc-2t`."""
        words = re.findall(r"[a-z0-9]+", f"{self.arch} {self.sku}".lower())
        suffix = f"-{self.units}t" if self.kind == "cpu" else ("-mig" if self.mig else "")
        return "-".join(words)[:80] + suffix

    @property
    def capability(self) -> int:
        """The compute capability of an NVIDIA GPU as a number, 90 for sm90; 0 for any other device."""
        digits = self.arch.removeprefix("sm")
        return int(digits) if self.kind == "cuda" and digits.isdigit() else 0

    def named(self, name: str) -> bool:
        """Whether `name` is this device's SKU or arch; case does not count."""
        return name.lower() in (self.sku.lower(), self.arch.lower())
