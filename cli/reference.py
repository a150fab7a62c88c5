"""The command-line reference: `python -m gemmdb.cli.reference > docs/cli.md` generates it from the application."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from gemmdb.cli.app import app
from gemmdb.settings import ENVIRONMENT

INTRODUCTION = """\
# Command line

Generated from the commands themselves by `python -m gemmdb.cli.reference > docs/cli.md`; a test compares the two.
Answers go to stdout, everything else goes to stderr."""


def render() -> str:
    """The whole reference as Markdown."""
    group: Any = typer.main.get_command(app)
    sections = [INTRODUCTION, "## gemmdb", *_prose(group.help), _options(group)]
    for name, command in group.commands.items():
        sections += _command(name, command)
    sections += ["## Environment", _environment()]
    return "\n\n".join(section for section in sections if section) + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    """The section of a command, and those of the commands in it."""
    yield from (f"## gemmdb {name}", f"`{_usage(name, command)}`", *_prose(command.help), _options(command))
    for inner, one in getattr(command, "commands", {}).items():
        yield from _command(f"{name} {inner}", one)


def _prose(text: str) -> Iterator[str]:
    """The paragraphs of a help text. The terminal prints a block marked with \\b unchanged; here its indented lines
    become code."""
    for block in inspect.cleandoc(text).split("\n\n"):
        lines = block.replace("\b\n", "").splitlines()
        while lines:
            indented = lines[0].startswith("  ")
            size = next((i for i, line in enumerate(lines) if line.startswith("  ") != indented), len(lines))
            part, lines = lines[:size], lines[size:]
            body = "\n".join(line.removeprefix("  ") for line in part)
            yield f"```sh\n{body}\n```" if indented else body


def _environment() -> str:
    rows = [f"| `{name}` | {_escape(meaning)} |" for name, meaning in ENVIRONMENT.items()]
    return "\n".join(["| variable | meaning |", "|---|---|", *rows])


def _usage(name: str, command: Any) -> str:
    arguments = [
        _placeholder(p) if p.required else f"[{_placeholder(p)}]"
        for p in command.params
        if p.param_type_name == "argument"
    ]
    required = [f"{p.opts[0]} {_placeholder(p)}" for p in command.params if _is_option(p) and p.required]
    separator = ["--"] if name in ("record", "tune") else []
    return " ".join(["gemmdb", name, *required, "[OPTIONS]", *separator, *arguments])


def _options(command: Any) -> str:
    rows = [_row(parameter) for parameter in command.params if _is_option(parameter)]
    arguments = [
        f"| `{_placeholder(p)}` | {_escape(p.help)} | |" for p in command.params if p.param_type_name == "argument"
    ]
    return "\n".join(["| option | meaning | default |", "|---|---|---|", *arguments, *rows]) if rows + arguments else ""


def _row(parameter: Any) -> str:
    flag = parameter.opts[0] if parameter.is_flag else f"{parameter.opts[0]} {_placeholder(parameter)}"
    if parameter.required:
        default = "required"
    elif parameter.is_flag or parameter.default in (None, "", 0):
        default = ""
    else:
        default = f"`{parameter.default}`"
    return f"| `{_escape(flag)}` | {_escape(parameter.help)} | {default} |"


def _placeholder(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _is_option(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "option")


def _escape(text: str | None) -> str:
    return (text or "").replace("|", "\\|")


if __name__ == "__main__":
    print(render(), end="")
