"""What runs in a process that compiles. It imports only what that needs."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import threading

from gemmdb.generators.measure.cuda.artifact import Artifact, Built


def warm(artifact: Artifact, capability: int) -> Built:
    """Build an artifact."""
    return artifact.build(capability)


def preloaded() -> None:
    """Import what compiling a Triton kernel takes."""
    with contextlib.suppress(Exception):  # The first kernel reports it.
        importlib.import_module("triton.compiler")
        importlib.import_module("gemmdb.generators.measure.cuda.units")


def background() -> None:
    """Set up a process that compiles. It has a lower priority than the processes that time, ignores interrupts, and
    ends when its parent ends, even if the parent crashes."""
    os.nice(10)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
