"""What this process could not compile: kernels that were lowered, and that a compiler then refused."""

from __future__ import annotations

from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem

MOST = 10_000
"""The most that is remembered."""
_refused: dict[tuple[str, str], str] = {}


def add(problem: str, config: str, why: str) -> None:
    """Remember that the graph with this kernel could not be compiled. `problem`, `config`: canonical texts."""
    if len(_refused) < MOST:
        _refused[problem, config] = why


def why(config: Config, problem: Problem) -> str | None:
    """Why a config is not served for a problem, in one phrase; None if nothing is known against it."""
    found = _refused.get((problem.text, config.text)) if _refused else None
    return None if found is None else f"a graph with this kernel could not be compiled ({found})"


def some() -> bool:
    """Whether there is any: graphs of this process may differ then from those of another one."""
    return bool(_refused)


def clear() -> None:
    """Forget everything."""
    _refused.clear()
