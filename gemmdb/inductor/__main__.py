"""`python -m gemmdb.inductor PROGRAM.py [ARGUMENTS]` runs a program with gemmdb and prints the summary at its end.

The program needs no change, and runs as with `python PROGRAM.py`; `-m MODULE` instead of a file runs a module. The
summary goes to stderr. GEMMDB_ON_MISS, GEMMDB_TABLES and the other variables are heeded.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import gemmdb.inductor
from gemmdb.errors import InputError


def main(arguments: Sequence[str]) -> None:
    """Run the program of a command line without its first word. Raises what the program raises, also SystemExit."""
    module = arguments[:1] == ["-m"]
    program = list(arguments[1:] if module else arguments)
    if arguments[:1] in (["-h"], ["--help"]):
        sys.stdout.write(f"{__doc__}\n")
        return
    if fault := _fault(program, module):
        sys.stderr.write(f"python -m gemmdb.inductor: {fault}\n")
        raise SystemExit(2)
    try:
        gemmdb.inductor.enable()
    except InputError as error:  # A wrong setting, before the program has begun.
        sys.stderr.write(f"python -m gemmdb.inductor: {error}\n")
        raise SystemExit(2) from None
    here = os.getpid()
    sys.argv = program
    try:
        if module:
            runpy.run_module(program[0], run_name="__main__", alter_sys=True)
        else:
            if not sys.flags.safe_path:
                sys.path[0] = str(Path(program[0]).resolve().parent)
            runpy.run_path(program[0], run_name="__main__")
    finally:
        if os.getpid() == here:  # A forked child may come here too.
            sys.stdout.flush()
            sys.stderr.write(f"{gemmdb.inductor.summary()}\n")


def _fault(program: Sequence[str], module: bool) -> str:
    """Return why no program can be run; empty if there is one."""
    if not program:
        missing = "-m MODULE" if module else "PROGRAM.py"
        return f"the program is missing: python -m gemmdb.inductor {missing} [ARGUMENTS]"
    if module or Path(program[0]).is_file():
        return ""
    return (
        f"{program[0]} is a folder; name a Python file" if Path(program[0]).is_dir() else f"{program[0]}: no such file"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
