"""The application: the commands, and the mapping from exceptions to exit codes and messages on stderr."""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import typer

import gemmdb
from gemmdb.cli import (
    build,
    compare,
    coverage,
    demo,
    doctor,
    exchange,
    files,
    freeze,
    kernels,
    lookup,
    record,
    tables,
    tune,
    verify,
    vllm,
)
from gemmdb.cli.output import note, one_line
from gemmdb.errors import GemmdbError
from gemmdb.files import remedy
from gemmdb.settings import Settings, log_level, name_unknown_variables

INTERRUPTED = 130
BAD_INPUT = 2
UNEXPECTED = 70
"""EX_SOFTWARE of sysexits.h."""
ANSWERS = ("lookup", "explain", "coverage", "report")
"""Commands that show what a compile serves."""

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

app = typer.Typer(name="gemmdb", rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=HELP)
tables_app = typer.Typer(name="tables", rich_markup_mode=None, context_settings=HELP)
tables_app.callback(invoke_without_command=True)(tables.tables)
for function in (tables.pull, tables.push, files.pack):
    tables_app.command()(function)
kernels_app = typer.Typer(name="kernels", rich_markup_mode=None, context_settings=HELP)
kernels_app.callback(invoke_without_command=True)(kernels.kernels)
kernels_app.command()(kernels.build)
vllm_app = typer.Typer(name="vllm", rich_markup_mode=None, context_settings=HELP)
vllm_app.callback(invoke_without_command=True)(vllm.vllm)
for one in (vllm.experts, vllm.linear):
    vllm_app.command()(one)
for command in (
    tune.tune, freeze.freeze, record.record, build.build, coverage.coverage, lookup.lookup, lookup.explain,
    tables_app, kernels_app, vllm_app, verify.verify, files.merge, files.diff, exchange.export, exchange.import_,
    compare.compare, record.report, tables.show, doctor.doctor, demo.demo,
):  # fmt: skip
    if isinstance(command, typer.Typer):
        app.add_typer(command)
        continue
    # COMMAND has its own options, so everything after its first word is passed through.
    settings = {"allow_interspersed_args": command not in (tune.tune, freeze.freeze, record.record)}
    # A trailing underscore distinguishes a function name from a Python keyword.
    app.command(command.__name__.removesuffix("_"), context_settings=settings)(command)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gemmdb {gemmdb.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def gemmdb_command(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Tuned GEMM kernels for torch.compile, looked up instead of searched.

    \b
    Everything in one command:
      gemmdb tune -- python train.py

    \b
    Its steps:
      gemmdb record -- python train.py                     # record its GEMMs in workload.jsonl
      gemmdb build --arch native --shapes workload.jsonl   # benchmark them, once per kind of device
      gemmdb coverage workload.jsonl                       # show which of them hit now
    Then torch.compile(model, backend="gemmdb") in the program uses the tables.

    \b
    Exit codes: 0 done; 1 a negative answer: a miss, a difference, a problem found;
    2 bad usage or bad input, with one line on stderr; 70 a bug in gemmdb; 130 interrupted.

    Environment: GEMMDB_TABLES, GEMMDB_USER_TABLE, GEMMDB_ON_MISS, GEMMDB_CONFIRM, GEMMDB_FROZEN, GEMMDB_DISABLE and
    GEMMDB_LOG; `gemmdb doctor` shows those that are set.
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run the command in `arguments` and return its exit code. Never raises."""
    _route_warnings()
    name_unknown_variables()
    try:
        _note_disabled(arguments)
        with typer.main.get_command(app).make_context("gemmdb", list(arguments)) as context:
            context.command.invoke(context)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        return _exit_code(error, arguments)
    return 0


def _note_disabled(arguments: Sequence[str]) -> None:
    """Say that a compile ignores gemmdb, where a command shows what a compile serves."""
    if arguments and arguments[0] in ANSWERS and Settings.read().disabled:
        note("GEMMDB_DISABLE is set, so a compile ignores gemmdb; this is what it serves without that variable")


def main() -> None:
    """The console script. Typer handles shell completion requests."""
    if "_GEMMDB_COMPLETE" in os.environ:
        app(prog_name="gemmdb")
    sys.exit(run(sys.argv[1:]))


def _exit_code(error: BaseException, arguments: Sequence[str]) -> int:
    """Print the message of the exception that ended the command and return the exit code."""
    if isinstance(error, typer.Exit):
        return error.exit_code
    if isinstance(error, SystemExit):  # Of --show-completion.
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        note("interrupted; no file was left incomplete")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # The reader of stdout has closed it. Without this, Python reports an error when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, GemmdbError):
        note(str(error))
        return BAD_INPUT
    if hasattr(error, "format_message"):
        # A usage error, from click or from the copy of click inside newer versions of Typer.
        command = getattr(getattr(error, "ctx", None), "command_path", "gemmdb")
        note(f"{_usage(error, arguments)}; see {command} --help")
        return BAD_INPUT
    if isinstance(error, OSError) and error.filename is not None:
        note(f"{error.filename}: {error.strerror}; {remedy(error)}")
        return BAD_INPUT
    note(f"unexpected {type(error).__name__}: {one_line(str(error))[:300]} (GEMMDB_LOG=DEBUG shows the traceback)")
    logging.getLogger("gemmdb").debug("traceback", exc_info=error)
    return UNEXPECTED


def _usage(error: Any, arguments: Sequence[str]) -> str:
    """Return the message of a usage error with the option's value, which newer versions of Typer omit."""
    message = str(error.format_message()).rstrip(".")
    given = None
    options = (name for name in getattr(getattr(error, "param", None), "opts", ()) if name.startswith("-"))
    for option in options:  # The name of an argument may be that of a command.
        for place, word in enumerate(arguments):
            if word == option and place + 1 < len(arguments):
                given = arguments[place + 1]
            elif word.startswith(f"{option}="):
                given = word.removeprefix(f"{option}=")
    if type(error).__name__ == "MissingParameter":
        return message + _known(error)
    return message if given is None or repr(given) in message else f"{message}, got {given!r}"


def _known(error: Any) -> str:
    """Return the values of a missing option that takes the name of a format; empty for others."""
    from gemmdb.exchange import formats

    command, options = error.ctx.info_name, error.param.opts
    for name, option, known in (("export", "--to", formats.EXPORTS), ("import", "--from", formats.IMPORTS)):
        if command == name and option in options:
            return f"; known: {', '.join(known)}"
    return ""


class _Notes(logging.Handler):
    """Prints log records as lines on stderr. A traceback, which only DEBUG enables, is printed unchanged."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage().removeprefix("gemmdb: "))
        if record.exc_info:
            traceback.print_exception(record.exc_info[1])


def _route_warnings() -> None:
    """Print the library's warnings and log records in the command's format. GEMMDB_LOG sets the level."""
    level = log_level(os.environ.get("GEMMDB_LOG", ""))
    logger = logging.getLogger("gemmdb")
    if not any(isinstance(handler, _Notes) for handler in logger.handlers):
        logger.addHandler(_Notes())
        logger.propagate = False
    logger.setLevel(level or logging.WARNING)
    warnings.showwarning = lambda message, *_, **__: note(str(message))
