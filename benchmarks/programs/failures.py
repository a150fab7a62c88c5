"""What is kept of a process or a way that failed: one line that names the exception."""

from __future__ import annotations

from collections.abc import Sequence

MOST = 300
"""Characters that are kept."""
_TRACEBACK = "Traceback (most recent call last):"
_NOISE = ("Exception ignored in", "Exception in thread")
"""How the line before a traceback begins that did not end the process."""


def brief(message: str) -> str:
    """The first line of a message that says something, at most MOST characters. A line that ends in a colon goes on
    with the next one: `BackendCompilerFailed: backend='gemmdb' raised:`."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    count = next((index for index, line in enumerate(lines, 1) if not line.endswith(":")), len(lines))
    return " ".join(lines[:count])[:MOST]


def exception(error: Exception) -> str:
    """The name of an exception, and what it says in brief."""
    return brief(f"{type(error).__name__}: {error}")


def ended(log: str) -> str:
    """Why a process ended, from what it printed: the exception of the last traceback, in brief; without a traceback
    the last line. What follows an exception's first line is advice, such as "Compile with `TORCH_USE_CUDA_DSA`"."""
    lines = log.splitlines()
    for index in range(len(lines) - 1, -1, -1):
        if lines[index] == _TRACEBACK and not (index and lines[index - 1].startswith(_NOISE)):
            raised = _raised(lines[index + 1 :])
            if raised:
                return brief("\n".join(raised))
    said = [line.strip() for line in lines if line.strip()]
    return (said or [""])[-1][:MOST]


def _raised(lines: Sequence[str]) -> Sequence[str]:
    """The lines after those of a traceback, which are indented."""
    first = next((index for index, line in enumerate(lines) if line.strip() and not line[0].isspace()), len(lines))
    return lines[first:]
