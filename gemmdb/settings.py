"""User settings: the environment variables and the lookup Policy."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError, checks_arguments, choices, suggestion
from gemmdb.key import canonical

ON_MISS = ("aten", "live", "error")
LIVE_S, EXPLICIT_LIVE_S = 10.0, 300.0
"""Maximum seconds that live tuning may add to compiling one graph: by default, and with an explicit `live`."""
LIVE_CALLS, EXPLICIT_LIVE_CALLS = 100_000, 3_000_000
"""Calls of a graph within which live tuning must pay for itself: by default, and with an explicit `live`."""
UNLIMITED_LIVE_S = 60.0
"""With a live tuning budget of at least this many seconds per graph, every GEMM is tuned."""
CONFIRM_S = 3.0
"""Default maximum seconds that confirming configs may add to compiling one graph."""
FAST_COMPILE_COST = 9
"""Kernels at or below this compile cost compile in about a second. nvcc takes half a minute."""

ENVIRONMENT = {
    "GEMMDB_TABLES": f"tables to use before all others, separated by {os.pathsep!r}",
    "GEMMDB_USER_TABLE": "the file that confirming and live tuning write to; read after GEMMDB_TABLES",
    "GEMMDB_ON_MISS": "the action on a miss: live (default, if it is fast), aten or error",
    "GEMMDB_CONFIRM": "0: serve configs not measured for this exact problem without timing them against ATen first",
    "GEMMDB_FROZEN": "1, or a file that `gemmdb freeze` wrote: time nothing, write nothing, read only the named tables",
    "GEMMDB_TRUST": "a file of SHA-256 digests; third-party tables are used only if they are listed in it",
    "GEMMDB_DISABLE": "1 disables gemmdb: torch.compile behaves as if it were not installed",
    "GEMMDB_LOG": "a logging level, for example INFO or DEBUG",
}
"""The environment variables that gemmdb reads, with their meanings."""
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
CHOICES = {"GEMMDB_ON_MISS": ON_MISS, "GEMMDB_CONFIRM": ("0", "1"), "GEMMDB_LOG": LEVELS}
"""The values of the variables that have few."""
DISABLED = "GEMMDB_DISABLE is set"
"""Why gemmdb does nothing."""
_named: set[str] = set()
"""Unknown variables that this process has named."""


@dataclass(frozen=True)
class Policy:
    """The rules for which configs may be served. `text` is part of every compile-cache key.

    `on_miss`: the action on a miss; empty means GEMMDB_ON_MISS, which defaults to `live`. `live_s`: maximum seconds
    that live tuning may add to compiling one graph; tuning that is known to take longer, for example on a CPU, does not
    start. 0 means 10, or 300 with an explicit `live`. `live_calls`: a GEMM is tuned only if the expected savings pay
    for the tuning within this many calls of its graph; 0 means 100,000, or 3,000,000 with an explicit `live`.
    `live_cost`: live tuning skips kernels with a higher compile cost (10, if `compile_cost` allows it too, includes
    CUTLASS: half a minute of nvcc per kernel, so allow more time). `min_gain`: minimum gain over ATen for any other
    config (0.02 is 2%). `unverified_gain`: the same for rows measured under another toolchain. `near_loss`: the largest
    estimated loss of a `near` config; nine out of ten lose less than estimated. `range_regret`: the largest loss
    allowed over the range of a symbolic size. `near`, `sku`, `model`: enable these rungs after `exact`. `model_gain`:
    minimum expected gain for a config that was never measured on this GPU and is not benchmarked first. `allow`,
    `deny`: regular expressions searched in a config's text; ATen is always allowed. `batch_invariant`: the kernels of
    an mm or addmm of 16-bit operands on a GPU add in one order, so that the bits of a row do not depend on M. gemmdb
    then times nothing. For other GEMMs it only excludes kernels that split K. `compile_cost`: kernels with a higher
    compile cost are not served (1: a Triton kernel, about a second; 10: a CUTLASS kernel, half a minute of nvcc, which
    the default excludes). `cutlass_size`: no CUTLASS kernel for GEMMs with a smaller M x N x K. `confirm`: whether to
    benchmark a config against ATen before serving it if it was not measured for this exact problem; None means
    GEMMDB_CONFIRM, which defaults to yes. `confirm_s`: maximum seconds that this may add to compiling one graph; 0
    means 3. Live tuning and confirming together may add 8 seconds to all graphs of a process, plus whatever these two
    allow beyond their defaults. `horizontal`: whether to merge GEMMs that share an activation into one kernel where
    that is faster in the program; only configs that may be confirmed qualify. `captured`: whether CUDA graphs capture
    the compiled code, so that the time of the host does not count; None: if Inductor captures it, as in mode
    `reduce-overhead`. `training`: whether the compiled code is part of a training step; None: if Inductor compiles it
    for a backward pass. `frozen`: whether compiles time and write nothing and read the named tables alone, whatever
    `on_miss` and `confirm` say; None means GEMMDB_FROZEN.
    """

    on_miss: str = ""
    min_gain: float = 0.02
    unverified_gain: float = 0.05
    near_loss: float = 0.1
    range_regret: float = 0.01
    near: bool = True
    sku: bool = True
    model: bool = True
    allow: str = ""
    deny: str = ""
    batch_invariant: bool = False
    compile_cost: int = FAST_COMPILE_COST
    cutlass_size: int = 0
    model_gain: float = 0.25
    live_s: float = 0.0
    live_cost: int = FAST_COMPILE_COST
    live_calls: int = 0
    confirm: bool | None = None
    confirm_s: float = 0.0
    horizontal: bool = True
    captured: bool | None = None
    training: bool | None = None
    frozen: bool | None = None

    def __post_init__(self) -> None:
        if self.on_miss not in ("", *ON_MISS):
            raise InputError(f"on_miss={self.on_miss!r}; {choices(self.on_miss, ON_MISS)}")
        for names, wanted, fits in _RULES:
            for name in names:
                if not fits(value := getattr(self, name)):
                    raise InputError(f"{name} must be {wanted}, got {value!r}")
        for pattern in (self.allow, self.deny):
            try:
                re.compile(pattern)
            except re.error as error:
                raise InputError(f"not a regular expression: {pattern!r} ({error})") from error

    @property
    def without_cutlass(self) -> Policy:
        """This policy without any CUTLASS kernels, prebuilt or not."""
        return replace(self, cutlass_size=2**63)  # No GEMM is this large.

    @property
    def without_views(self) -> Policy:
        """This policy without configs whose output is a view of padded rows."""
        return replace(self, deny=f"{self.deny}|output=view" if self.deny else "output=view")

    @property
    def text(self) -> str:
        """The canonical form."""
        return canonical.encode("policy", ((name, getattr(self, name)) for name in self.__dataclass_fields__))

    def resolved(self, settings: Settings, on_miss: str | None = None) -> Policy:
        """Return the policy with every default filled in. `on_miss`: the caller's choice, which takes precedence."""
        frozen = settings.frozen if self.frozen is None else self.frozen
        explicit = on_miss or self.on_miss or settings.on_miss
        timed = not (frozen or self.batch_invariant)  # A time would choose a kernel for one M.
        if not timed and explicit != "error":  # Which times nothing either.
            explicit = "aten"
        limit_s, calls = (EXPLICIT_LIVE_S, EXPLICIT_LIVE_CALLS) if explicit == "live" else (LIVE_S, LIVE_CALLS)
        on_miss = explicit or "live"
        # Strict mode serves nothing that needs confirming.
        confirm = timed and on_miss != "error" and (settings.confirm if self.confirm is None else self.confirm)
        return replace(
            self, on_miss=on_miss, live_s=self.live_s or limit_s, live_calls=self.live_calls or calls,
            confirm=confirm, confirm_s=self.confirm_s or CONFIRM_S, frozen=frozen,
        )  # fmt: skip


Policy.__init__ = checks_arguments(Policy.__init__)  # type: ignore[method-assign]


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


_RULES: tuple[tuple[tuple[str, ...], str, Callable[[Any], bool]], ...] = (
    (("min_gain", "unverified_gain", "near_loss", "range_regret", "model_gain"), "a finite number", _is_finite),
    (("live_s", "confirm_s"), "a finite number that is not negative", lambda x: _is_finite(x) and x >= 0),
    (
        ("compile_cost", "cutlass_size", "live_cost", "live_calls"), "a whole number that is not negative",
        lambda x: isinstance(x, int) and x >= 0,
    ),
    (("confirm", "captured", "training", "frozen"), "True, False or None", lambda x: isinstance(x, bool | None)),
    (("horizontal", "batch_invariant"), "True or False", lambda x: isinstance(x, bool)),
)  # fmt: skip
"""Policy fields, their requirement in words, and a check for it."""


@dataclass(frozen=True)
class Settings:
    """The environment, read once. `tables`: the tables in GEMMDB_TABLES, in order. `user_table`: the file that `live`
    writes. `on_miss`: empty if GEMMDB_ON_MISS is not set. `confirm`: the default for a Policy with `confirm=None`.
    `trust`: a file with the digests of trusted tables; None trusts all tables. `frozen`: the default for a Policy with
    `frozen=None`. `pins`: the file with the names and digests of the tables that a frozen compile reads; None: those
    that are named, and the shipped ones."""

    tables: tuple[Path, ...]
    user_table: Path
    on_miss: str = ""
    disabled: bool = False
    confirm: bool = True
    trust: Path | None = None
    frozen: bool = False
    pins: Path | None = None

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the settings from `environ` (default: the process environment). Raises InputError for a value that is
        not one of CHOICES, unless gemmdb is disabled."""
        env = os.environ if environ is None else environ
        disabled = env.get("GEMMDB_DISABLE", "").strip().lower() not in _OFF
        for name in CHOICES if not disabled else ():
            if fault := fault_of(name, env.get(name, "")):
                raise InputError(fault)
        on_miss, confirm = env.get("GEMMDB_ON_MISS", "").strip(), env.get("GEMMDB_CONFIRM", "").strip()
        named = filter(None, _LISTED.findall(env.get("GEMMDB_TABLES", "")))
        user = env.get("GEMMDB_USER_TABLE") or str(data_home(env) / "user.db")
        trust, frozen = env.get("GEMMDB_TRUST", ""), env.get("GEMMDB_FROZEN", "").strip()
        pins = _expanded(frozen) if frozen.lower() not in (*_OFF, *_ON) else None
        return cls(
            tuple(map(_expanded, named)), _expanded(user), on_miss if on_miss in ON_MISS else "", disabled,
            confirm != "0", _expanded(trust) if trust else None, frozen.lower() not in _OFF, pins,
        )  # fmt: skip

    def with_frozen(self, frozen: bool | str | Path | None) -> Settings:
        """Return the settings with a program's own choice: frozen or not, or by a file of digests. None changes
        nothing."""
        if frozen is None:
            return self
        if isinstance(frozen, bool):
            return replace(self, frozen=frozen)
        return replace(self, frozen=True, pins=Path(frozen))


def fault_of(name: str, value: str) -> str:
    """Return why a variable cannot have that value, or an empty text. Only CHOICES are checked."""
    known = CHOICES.get(name)
    if known is None or value.strip() in ("", *known) or (name == "GEMMDB_LOG" and log_level(value) is not None):
        return ""
    return f"{name}={value!r}; {choices(value, known)}"


def name_unknown_variables(environ: Mapping[str, str] | None = None) -> None:
    """Warn about each variable that begins with `GEMMDB_` and means nothing, once per process."""
    for name in sorted(os.environ if environ is None else environ):
        if name.startswith("GEMMDB_") and name not in ENVIRONMENT and name not in _named:
            _named.add(name)
            logging.getLogger("gemmdb").warning(
                "%s is no setting of gemmdb%s", name, suggestion(name, ENVIRONMENT) or "; see docs/settings.md"
            )


def data_home(environ: Mapping[str, str] | None = None) -> Path:
    """Return `$XDG_DATA_HOME/gemmdb`, where `gemmdb build` writes and the Catalog looks."""
    env = os.environ if environ is None else environ
    base = env.get("XDG_DATA_HOME")
    return (Path(base) if base else _home() / ".local" / "share") / "gemmdb"


def log_level(text: str) -> int | None:
    """Return the logging level for a GEMMDB_LOG value, ignoring case; None for an unknown level or `NOTSET`."""
    level = logging.getLevelName(text.strip().upper())
    return level if isinstance(level, int) and level != logging.NOTSET else None


def url_of(path: Path) -> str | None:
    """Return the URL that a Path was made from, or None. Path collapses the two slashes of a URL into one."""
    return str(path).replace(":/", "://", 1) if _URL.match(str(path)) else None


_OFF, _ON = ("", "0", "false", "no", "off"), ("1", "true", "yes", "on")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+-]+:/")
_LISTED = re.compile(rf"(?:[A-Za-z][A-Za-z0-9+-]+://[^/{os.pathsep}]*(?::\d+(?=/))?)?[^{os.pathsep}]*")
"""One item of a PATH-like list. A URL stays whole, so that error messages can name it."""


def _home() -> Path:
    """Return the home directory. If it is unknown, for example for a numeric user id in a container, return a path that
    cannot exist: a shared directory could contain other users' tables."""
    try:
        return Path.home()
    except RuntimeError:
        return Path(os.devnull)


def _expanded(text: str) -> Path:
    """Return a setting's path, with `~` expanded if the home directory is known."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def shipped_tables() -> Path:
    """Return the directory of the shipped tables."""
    return Path(__file__).parent / "tables"
