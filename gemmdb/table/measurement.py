"""Measurement: one immutable run of a Config on a Problem, including failed runs. Protocol: the benchmark procedure."""

from __future__ import annotations

import enum
import hashlib
import math
import re
from dataclasses import dataclass

from gemmdb.errors import InputError
from gemmdb.kernels.config import Config
from gemmdb.key import canonical
from gemmdb.key.canonical import lazy
from gemmdb.key.device import Device
from gemmdb.key.problem import L2_STATES, Problem
from gemmdb.key.toolchain import Toolchain

_RUN = re.compile(r"[A-Za-z0-9_.:\-]{1,64}")
MAX_DETAIL = 300
LEAST_US, MOST_US = 1e-6, 1e12
"""Valid range of a time in microseconds. Ratios of two such times are finite and positive."""
EMITTED = "emitted"
"""`Measurement.detail` of a time measured on compiler-emitted code. Other rows of the same config time only the
kernel."""
DISTURBED = "disturbed"
"""Part of `Measurement.detail` of a time measured while other programs kept the machine busy, or with an unsteady
reference. Such a time alone is no evidence against ATen."""
NOISY = 0.25
"""A time whose relative 95% interval is wider than this on each side was disturbed. A build measures it again, and
predictions ignore it."""
COPIES, COPIED_BYTES = 20, 2**31
"""On a GPU, GEMMs run on operands at COPIES addresses, as long as the copies take at most COPIED_BYTES. The mean over
many addresses has less noise than the time at one."""


REFERENCE_SINCE = {("cpu", "mixed_mm"): 3}
"""The first protocol version with today's reference, by device kind and op; 1 if not listed. Earlier CPU rows compare a
GEMM with an int8 weight with a cast and a GEMM, which default mode runs for few of them."""


class Status(enum.StrEnum):
    """The outcome of benchmarking a candidate. Only `OK` and `SLOW` have times; only `OK` can be picked."""

    OK = "ok"  # Measured in full, and correct
    SLOW = "slow"  # Correct, but dropped after a short estimate, which its times contain
    WRONG = "wrong"  # Result outside the dtype's tolerance. Not served, even if another run was correct
    ERROR = "error"  # Failed to compile, or raised
    CRASH = "crash"  # Process died: a signal, an illegal memory access
    TIMEOUT = "timeout"  # Timed out
    OOM = "oom"  # Ran out of memory
    ILLEGAL = "illegal"  # Not run, because a legality rule excludes it here


TIMED = frozenset({Status.OK, Status.SLOW})
UNSAFE = frozenset({Status.WRONG, Status.CRASH})
"""A config with one such row on a problem is never served for that problem."""


@dataclass(frozen=True)
class Protocol:
    """The benchmark procedure. `clock`: `graph` (CUDA graph, events) or `host` (monotonic clock around calls). `l2`:
    the state of the last-level cache before each call, `cold` or `hot`. `unroll`: calls per sample. `samples`: the
    target number of samples for a full measurement. `reference`: the config whose samples are interleaved. `version`:
    incremented when the procedure changes."""

    clock: str
    l2: str
    unroll: int
    samples: int
    reference: str = "aten:default"
    version: int = 1

    def __post_init__(self) -> None:
        if self.clock not in ("graph", "host", "model") or self.l2 not in L2_STATES:
            raise InputError(f"no such protocol: clock {self.clock[:20]!r}, l2 {self.l2[:20]!r}")
        counts = (self.unroll, self.samples, self.version)
        whole = all(type(count) is int for count in counts)
        if not (whole and 0 < self.unroll <= 10_000 and 0 < self.samples <= 1_000_000 and 0 < self.version <= 1000):
            raise InputError(f"no such protocol: unroll {self.unroll}, samples {self.samples}, version {self.version}")
        if not 0 < len(self.reference) <= 80 or not self.reference.isprintable():
            raise InputError(f"no such protocol: reference {self.reference[:80]!r}")

    __getstate__ = canonical.state

    def is_superseded(self, op: str, kind: str) -> bool:
        """Whether it compares GEMMs of an op on a kind of device with another reference than today's. Nothing that was
        measured with it counts then, except that a config was wrong or crashed."""
        return self.clock != "model" and self.version < REFERENCE_SINCE.get((kind, op), 1)

    @lazy
    def text(self) -> str:
        """The canonical form; `parse` reads it back."""
        return canonical.encode("protocol", (
            ("clock", self.clock), ("l2", self.l2), ("unroll", self.unroll), ("samples", self.samples),
            ("reference", self.reference), ("version", self.version),
        ))  # fmt: skip

    @lazy
    def key(self) -> int:
        """The 64-bit key of the canonical form."""
        return canonical.key(self.text)

    @classmethod
    def parse(cls, text: str) -> Protocol:
        """Parse a canonical form; raises InputError unless `text` is exactly a `Protocol.text`."""
        part = canonical.decode("protocol", text)
        try:
            protocol = cls(
                str(part["clock"]), str(part["l2"]), int(part["unroll"] or 0), int(part["samples"] or 0),
                str(part["reference"]), int(part["version"] or 0),
            )  # fmt: skip
        except (KeyError, ValueError) as error:
            raise InputError(f"malformed protocol {text[:200]!r}") from error
        if protocol.text != text:
            raise InputError(f"not a canonical protocol: {text[:200]!r}")
        return protocol


@dataclass(frozen=True, slots=True)
class Times:
    """Statistics of one timed candidate, in microseconds per call.

    `median_us` with the 95% interval of the median [`low_us`, `high_us`] over `samples` samples; `aten_us` is the
    median of the interleaved reference, so `median_us / aten_us` is free of drift.
    """

    median_us: float
    low_us: float
    high_us: float
    samples: int
    aten_us: float

    def __post_init__(self) -> None:
        for name in ("median_us", "low_us", "high_us", "aten_us"):
            value = getattr(self, name)
            if not isinstance(value, float) or not LEAST_US <= value <= MOST_US:
                raise InputError(f"impossible times: {self}")
            if type(value) is not float:
                # A subclass (numpy's) has another repr, which would change the canonical form.
                object.__setattr__(self, name, float(value))
        if not self.samples >= 1:
            raise InputError(f"impossible times: {self}")
        if not self.low_us <= self.median_us <= self.high_us:
            raise InputError(f"the median is outside its interval: {self}")

    @property
    def ratio(self) -> float:
        """Time relative to the reference; below 1 is faster."""
        return self.median_us / self.aten_us

    @property
    def spread(self) -> float:
        """Half the width of the interval, relative to the median."""
        return (self.high_us - self.low_us) / 2 / self.median_us


@dataclass(frozen=True)
class Measurement:
    """One row. `run`: id of the run that produced it. `error`: the largest relative error against the higher-precision
    reference. `compile_s`: compile time in seconds. `detail`: one line about a failure, or the marks of a time:
    EMITTED, DISTURBED, or both.

    Raises InputError if a status without times has them, or a status with times lacks them.
    """

    problem: Problem
    config: Config
    device: Device
    protocol: Protocol
    toolchain: Toolchain
    run: str
    status: Status
    times: Times | None = None
    error: float | None = None
    compile_s: float | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        if (self.times is not None) != (self.status in TIMED):
            raise InputError(f"{self.config.name}: status {self.status} and times do not go together")
        if not _RUN.fullmatch(self.run):
            raise InputError(f"malformed run id {self.run[:80]!r}")
        if len(self.detail) > MAX_DETAIL or not self.detail.isprintable():
            raise InputError(f"{self.config.name}: detail must be one line of at most {MAX_DETAIL} characters")
        for name in ("error", "compile_s"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _float(name, value))

    @property
    def counts(self) -> bool:
        """Whether it has times, relative to today's reference."""
        return self.times is not None and not self.protocol.is_superseded(self.problem.op, self.device.kind)

    @property
    def emitted(self) -> bool:
        """Whether compiler-emitted code was timed."""
        return self.detail in (EMITTED, _BOTH)

    @property
    def disturbed(self) -> bool:
        """Whether the machine was busy during the measurement."""
        return self.detail in MARKED

    __getstate__ = canonical.state

    @lazy
    def text(self) -> str:
        """The canonical form. It refers to problem, config, device, protocol and toolchain by their 64-bit keys."""
        t = self.times
        times = (None,) * 5 if t is None else (t.median_us, t.low_us, t.high_us, t.samples, t.aten_us)
        return canonical.encode("measurement", (
            ("problem", self.problem.key), ("config", self.config.key), ("device", self.device.key),
            ("protocol", self.protocol.key), ("toolchain", self.toolchain.key), ("run", self.run),
            ("status", self.status.value),
            *zip(("median_us", "low_us", "high_us", "samples", "aten_us"), times, strict=True),
            ("error", self.error), ("compile_s", self.compile_s), ("detail", self.detail),
        ))  # fmt: skip

    @lazy
    def key(self) -> int:
        """The 64-bit key of the canonical form: the same row has the same key in every table."""
        return canonical.key(self.text)


def fingerprint(row: Measurement) -> int:
    """Return a 128-bit hash of a Measurement's full content, including the texts of everything it refers to. A table's
    content digest is the sum of the fingerprints modulo 2**128: equal rows give an equal digest in any order, and the
    writer updates it row by row."""
    parts = (row.problem, row.config, row.device, row.protocol, row.toolchain, row)
    text = "\n".join(part.text for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big")


_BOTH = f"{EMITTED}, {DISTURBED}"
MARKED = (DISTURBED, _BOTH)  # The details of times measured while other programs kept the machine busy


def marks(emitted: bool, disturbed: bool) -> str:
    """Return the detail of a time with these marks."""
    return ", ".join(word for word, holds in ((EMITTED, emitted), (DISTURBED, disturbed)) if holds)


def _float(name: str, value: float) -> float:
    """Return `value` as a table stores it: NaN becomes infinity, and negative zero becomes zero."""
    try:
        return math.inf if math.isnan(value) else float(value) + 0.0
    except TypeError as error:
        raise InputError(f"{name} must be a number, got {str(value)[:80]!r}") from error


def one_line(text: str) -> str:
    """Return `text` as one printable line of at most MAX_DETAIL characters."""
    flat = " ".join(text.split())
    return "".join(c if c.isprintable() else "?" for c in flat)[:MAX_DETAIL]
