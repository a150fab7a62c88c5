"""Commands that must succeed on this machine. A success is remembered for a day, as long as nothing that it depends on
changes."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gemmdb.errors import InputError
from gemmdb.files import read_bounded, replacing
from gemmdb.table.measurement import one_line

TIMEOUT_S = 180
"""Compiling a first function with torch.compile takes 5 to 30 s."""
FRESH_S = 86400
"""Seconds that a success counts."""
_VARIABLES = ("CC", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CXX", "LD_LIBRARY_PATH", "PATH")
_DRIVER = Path("/proc/driver/nvidia/version")
_MAX_BYTES = 2**16


@dataclass(frozen=True)
class Outcome:
    """The result of a command: its stdout, or why it failed. `seconds_ago`: when it ran, None for now."""

    out: str = ""
    error: str = ""
    seconds_ago: float | None = None


def run(command: Sequence[str], **environment: str) -> Outcome:
    """Run a command with these environment variables added."""
    environ = {**os.environ, **environment}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environ, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Outcome(error=f"{command[0]}: {type(error).__name__}: {error}")
    if done.returncode == 0:
        return Outcome(done.stdout)
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return Outcome(error=f"{command[0]}: {lines[-1] if lines else f'exit code {done.returncode}'}")


@dataclass
class Memory:
    """Successes by the name of the check, in a file of the user's cache. `fresh`: use none of an earlier process.
    `begin`: called with what is about to run, which may take a while."""

    fresh: bool = False
    begin: Callable[[str], None] = lambda words: None
    path: Path = field(default_factory=lambda: _cache() / "doctor.json")

    def run(self, name: str, words: str, command: Sequence[str], **environment: str) -> Outcome:
        """The remembered success of a check, or what its command does now. `words`: what that is."""
        state, known = fingerprint(command), {} if self.fresh else self._read()
        if found := _remembered(known.get(name), state):
            return found
        self.begin(words)
        done = run(command, **environment)
        if not done.error:
            self._write({**self._read(), name: {"state": state, "out": done.out[-2000:], "at": time.time()}})
        return done

    def _read(self) -> dict[str, object]:
        try:
            found = json.loads(read_bounded(self.path, _MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, found: dict[str, object]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as part:
                part.write_text(json.dumps(found))
        except (OSError, InputError):
            return  # Then the next process checks again.


def _remembered(entry: object, state: str) -> Outcome | None:
    if not isinstance(entry, dict) or entry.get("state") != state:
        return None
    out, at = entry.get("out"), entry.get("at")
    if not isinstance(out, str) or not isinstance(at, int | float) or not 0 <= time.time() - at <= FRESH_S:
        return None
    return Outcome("\n".join(map(one_line, out.splitlines())), seconds_ago=time.time() - at)


def fingerprint(command: Sequence[str]) -> str:
    """A digest of what the result of a command depends on: itself, this Python, torch, triton, the C++ compilers, the
    GPU driver, and the variables that choose among them."""
    files = [Path(sys.executable), _DRIVER]
    for package in ("torch", "triton"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin:
            # An installation writes all files anew; `version.py` names the version.
            files += [Path(spec.origin), Path(spec.origin).with_name("version.py")]
    files += [Path(found) for name in ("c++", "g++", "clang++", "gcc") if (found := shutil.which(name))]
    parts = [*command, sys.version, *(f"{name}={os.environ.get(name)}" for name in _VARIABLES)]
    for file in files:
        try:
            status = file.stat()
            parts.append(f"{file} {status.st_size} {status.st_mtime_ns}")
        except OSError:
            parts.append(f"{file} missing")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def ago(seconds: float) -> str:
    """A length of time in words: `5 min ago`."""
    if seconds < 90:
        return "just now" if seconds < 5 else f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 5400 else f"{seconds / 3600:.0f} h ago"


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(home) if home else Path.home() / ".cache") / "gemmdb"
    except RuntimeError:
        return Path(os.devnull)
