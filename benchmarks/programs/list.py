"""Name all programs, and say of each why it cannot run here.

    python -m benchmarks.programs list [--programs GLOBS]

A line has the program's name, its module, its class and, where a package is missing, which.
"""

from __future__ import annotations

import argparse

from benchmarks.programs.packages import missing
from benchmarks.programs.suite import chosen


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--programs", default="*", metavar="GLOBS", help="names, separated by commas; default: all")
    parser.add_argument("--source", default="", metavar="FILE", help="programs of this Python file; default: the suite")


def main(options: argparse.Namespace) -> None:
    """Print a line per program."""
    found = chosen(options.programs, options.source)
    for program in found:
        print(f"{program.name:28} {program.collection:10} {program.kind:9} {missing(program.needs)}".rstrip())
    print(f"{len(found)} programs")
