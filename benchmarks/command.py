"""The command line of a package of tools: `python -m PACKAGE TOOL [OPTIONS]`.

Each tool is a module of its package with a docstring (its help), `arguments(parser)` and `main(options)`. Only the
module of the tool that is called is imported, so `--help` is quick.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from gemmdb.errors import GemmdbError


@dataclass(frozen=True)
class Tool:
    """A tool: its name, what it does in one line, and whether it needs a GPU."""

    name: str
    line: str
    gpu: bool = False

    @property
    def module(self) -> str:
        """The name of its module within its package."""
        return self.name.replace("-", "_")

    @property
    def help(self) -> str:
        """The line for a list of tools."""
        return f"{self.line}{' [GPU]' if self.gpu else ''}"


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the docstrings, which it prints as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24, width=120)


def parser(package: str, tools: Sequence[Tool], called: str | None = None) -> argparse.ArgumentParser:
    """The parser of a package. Only the tool that is `called` has its options."""
    found = argparse.ArgumentParser(
        prog=f"python -m {package}",
        description=importlib.import_module(package).__doc__,
        epilog="[GPU]: needs an NVIDIA GPU. TOOL --help tells the options.",
        formatter_class=Formatter,
    )
    commands = found.add_subparsers(title="tools", metavar="TOOL", dest="tool", required=True)
    for tool in tools:
        added = commands.add_parser(tool.name, help=tool.help, formatter_class=Formatter)
        if tool.name == called:
            module = importlib.import_module(f"{package}.{tool.module}")
            added.description = module.__doc__
            module.arguments(added)
            added.set_defaults(main=module.main)
    return found


def run(package: str, tools: Sequence[Tool]) -> None:
    """Run the tool that the command line names; without one, print the list. Bad input ends it with one line."""
    found = parser(package, tools, *sys.argv[1:2])
    if not sys.argv[1:]:
        found.print_help()
        return
    options = found.parse_args()
    # Builds write the command into their tables, and the path of `__main__.py` says little.
    sys.argv[0] = found.prog
    try:
        options.main(options)
    except GemmdbError as error:
        raise SystemExit(str(error)) from None
    except FileNotFoundError as error:
        raise SystemExit(f"{error.filename}: {error.strerror}") from None


def command(package: str, tool: str, *arguments: object, **flags: object) -> tuple[str, ...]:
    """The command that runs a tool in a new process. `flags`: the values of options; None leaves an option out."""
    given = {f"--{name.replace('_', '-')}": value for name, value in flags.items() if value is not None}
    options = [str(word) for pair in given.items() for word in pair]
    return (sys.executable, "-m", package, tool, *map(str, arguments), *options)
