"""Folders with what goes wrong with disks: full ones, read-only ones, and file systems without locks."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

NO_LOCKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>

#define WITHOUT_LOCKS(name)                                              \\
    int name(int file, int command, ...) {                               \\
        va_list rest;                                                    \\
        va_start(rest, command);                                         \\
        void *argument = va_arg(rest, void *);                           \\
        va_end(rest);                                                    \\
        if (command == F_SETLK || command == F_SETLKW) {                 \\
            errno = ENOLCK;                                              \\
            return -1;                                                   \\
        }                                                                \\
        int (*real)(int, int, ...) = dlsym(RTLD_NEXT, #name);            \\
        return real(file, command, argument);                            \\
    }
WITHOUT_LOCKS(fcntl)
WITHOUT_LOCKS(fcntl64)
int flock(int file, int operation) { errno = ENOLCK; return -1; }
"""
"""What a network file system that is mounted without locks answers, as a library to load before libc."""


@contextlib.contextmanager
def small(folder: Path, size: str = "256k") -> Iterator[Path]:
    """A new file system of that size at `folder`. Skips the test where mounting is refused."""
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def grow(folder: Path, size: str = "64m") -> None:
    """Make room on a file system of `small`."""
    _mount("-o", f"remount,size={size}", str(folder))


def make_read_only(folder: Path) -> None:
    """Forbid writing on a file system of `small`, also to root, whom modes do not stop."""
    _mount("-o", "remount,ro", str(folder))


def without_locks(folder: Path) -> str:
    """A library for LD_PRELOAD that refuses every lock. Skips the test without a C compiler."""
    source, library = folder / "no_locks.c", folder / "no_locks.so"
    source.write_text(NO_LOCKS)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    except FileNotFoundError:
        pytest.skip("needs a C compiler, to stand for a file system without locks")
    return str(library)


def _mount(*arguments: str) -> None:
    try:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs mount, to make a small file system")
    if done.returncode:
        pytest.skip(f"cannot mount a small file system: {done.stderr.strip()}")
