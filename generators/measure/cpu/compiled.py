"""Which candidates the compiler's on-disk cache probably has, for estimates alone: an empty file for each, in the
cache's own folder. Whoever deletes the cache deletes these files, too."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from getpass import getuser
from pathlib import Path

from gemmdb.generators.backend import toolchain
from gemmdb.kernels.config import Config
from gemmdb.key import canonical
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain

FOLDER = "gemmdb-compiled"


def inductor_cache() -> Path:
    """Return the folder of Inductor's on-disk cache, as torch does; without importing torch."""
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or Path(tempfile.gettempdir(), f"torchinductor_{getuser()}"))


def is_empty() -> bool:
    """Return whether the cache is empty: the compiler then precompiles its headers and tries this CPU's vector units,
    before it compiles a candidate."""
    try:
        return not any(inductor_cache().iterdir())
    except OSError:
        return True


def note(pairs: Iterable[tuple[Problem, Config]], base: Toolchain) -> None:
    """Note candidates that are compiled now. A cache that cannot be written gets no notes."""
    with suppress(OSError):
        folder = inductor_cache() / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        for problem, config in pairs:
            (folder / _name(problem, config, base)).touch()


def noted(problem: Problem, config: Config, base: Toolchain) -> bool:
    """Return whether an earlier run compiled a candidate with the same software and code of gemmdb."""
    return (inductor_cache() / FOLDER / _name(problem, config, base)).is_file()


def _name(problem: Problem, config: Config, base: Toolchain) -> str:
    return f"{canonical.key(f'{problem.text} {config.text} {toolchain(base, config).text}') % 2**64:016x}"
