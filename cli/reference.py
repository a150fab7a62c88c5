"""The command-line reference: `python -m gemmdb.cli.reference > docs/cli.md` generates it from the application."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import typer

from gemmdb.cli.app import app
from gemmdb.settings import ENVIRONMENT

INTRODUCTION = """\
# Command line

Generated from the commands themselves by `python -m gemmdb.cli.reference > docs/cli.md`; a test compares the two.
Answers go to stdout, everything else goes to stderr."""


def render() -> str:
    """Return the whole reference as Markdown."""
    group: Any = typer.main.get_command(app)
    sections = [INTRODUCTION, "## gemmdb", *_prose(group.help), _table(group.params)]
    tables: dict[str, str] = {}
    for name, command in group.commands.items():
        sections += _command(name, command, tables)
    rows = [f"| `{name}` | {_escape(meaning)} |" for name, meaning in ENVIRONMENT.items()]
    sections += ["## Environment", "\n".join(["| variable | meaning |", "|---|---|", *rows])]
    return "\n\n".join(section for section in sections if section) + "\n"


def _command(name: str, command: Any, tables: dict[str, str]) -> Iterator[str]:
    """Yield the section of a command and of its subcommands. `tables`: the commands so far by their tables of options,
    each of which is printed once."""
    arguments = [_value(p) if p.required else f"[{_value(p)}]" for p in command.params if not _is_option(p)]
    required = [f"{p.opts[0]} {_value(p)}" for p in command.params if _is_option(p) and p.required]
    separator = ["--"] if name in ("record", "tune", "freeze") else []
    usage = " ".join(["gemmdb", name, *required, "[OPTIONS]", *separator, *arguments])
    yield from (f"## gemmdb {name}", f"`{usage}`", *_prose(command.help))
    table = _table(command.params)
    same = tables.setdefault(table, name) if table else name
    yield table if same == name else f"Its options are those of [`gemmdb {same}`](#gemmdb-{same.replace(' ', '-')})."
    for inner, one in getattr(command, "commands", {}).items():
        yield from _command(f"{name} {inner}", one, tables)


def _prose(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text. The terminal prints a block marked with \\b unchanged; here its indented
    lines become code."""
    for block in inspect.cleandoc(text).split("\n\n"):
        for is_code, lines in groupby(block.replace("\b\n", "").splitlines(), lambda line: line.startswith("  ")):
            body = "\n".join(line.removeprefix("  ") for line in lines)
            yield f"```sh\n{body}\n```" if is_code else body


def _table(parameters: Sequence[Any]) -> str:
    """Return a table of the arguments, then the options; empty if there are none."""
    rows = [_row(parameter) for parameter in sorted(parameters, key=_is_option)]
    return "\n".join(["| option | meaning | default |", "|---|---|---|", *rows]) if rows else ""


def _row(parameter: Any) -> str:
    if not _is_option(parameter):
        return f"| `{_value(parameter)}` | {_escape(parameter.help)} | |"
    flag = parameter.opts[0] if parameter.is_flag else f"{parameter.opts[0]} {_value(parameter)}"
    hidden = parameter.is_flag or parameter.default in (None, "", 0)
    default = "required" if parameter.required else "" if hidden else f"`{parameter.default}`"
    return f"| `{_escape(flag)}` | {_escape(parameter.help)} | {default} |"


def _value(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _is_option(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "option")


def _escape(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


if __name__ == "__main__":
    print(render(), end="")
