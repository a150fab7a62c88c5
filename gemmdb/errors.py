"""The exceptions that gemmdb raises, and the suggestion in the message for an unknown name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class GemmdbError(Exception):
    """Base class of gemmdb's errors. The message is one line that names the input and the fix."""


class InputError(GemmdbError, ValueError):
    """Invalid input: an unknown op, mismatched sizes, an unreadable file. The CLI exits with 2."""


class ArgumentError(InputError, TypeError):
    """A function of gemmdb was called with an argument that it does not have. The message names the nearest one."""


class TableError(GemmdbError):
    """An unusable table: not SQLite, corrupted, a newer schema, or invalid values. The CLI exits with 2."""


class MissError(GemmdbError):
    """Strict mode (`on_miss="error"`): no table covers a problem, so the compile fails with an error that names it."""


def choices(given: object, known: Iterable[str]) -> str:
    """Return `known: a, b, c; did you mean 'a'?`, the end of a message: all known names, and the one that is nearest to
    `given`, if any is near."""
    names = tuple(known)
    return f"known: {', '.join(names)}{suggestion(given, names)}"


def suggestion(given: object, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` with the known name that is nearest to `given`, or nothing if none is near. It ends
    a message. A beginning that all names share, such as `GEMMDB_`, makes none of them near."""
    import difflib  # Needed for unknown names only.

    word, by_lower = str(given)[:80].lower(), {name.lower(): name for name in known}
    columns = [set(letters) for letters in zip(word, *by_lower, strict=False)]
    shared = next((i for i, letters in enumerate(columns) if len(letters) > 1), 0)
    by_rest = {name[shared:]: meant for name, meant in by_lower.items()}
    near = difflib.get_close_matches(word[shared:], by_rest, 1)
    return f"; did you mean {by_rest[near[0]]!r}?" if near else ""


def unknown_argument(function: str, name: str, known: Iterable[str]) -> ArgumentError:
    """Return the error for an argument that a function does not have. `known`: the arguments that it has."""
    near = suggestion(name, names := tuple(known)) or f"; known: {', '.join(names)}"
    return ArgumentError(f"{function} got an unexpected keyword argument {name!r}{near}")


def checks_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function without `**kwargs`: an argument that it does not have raises ArgumentError."""
    code = function.__code__
    known = [name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if name != "self"]
    name = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*args: P.args, **given: P.kwargs) -> R:
        for one in given:
            if one not in known:
                raise unknown_argument(name, one, known)
        return function(*args, **given)

    return checked
