"""The PROBLEM of `gemmdb lookup` and `gemmdb explain`: a text that gemmdb has printed, or a line of a workload."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from gemmdb.errors import InputError
from gemmdb.key.problem import Problem
from gemmdb.workload import entries
from gemmdb.workload.entries import Entry, Ranges

_LINE = re.compile(r"(?P<path>[^\0]+):(?P<number>[1-9]\d{0,17})")
_RANGE = r"[mnk] \d{1,10}\.\.(?:\d{1,10})?"
_RANGED = re.compile(rf"(?P<text>.*\S) ?\((?P<ranges>{_RANGE}(?:, {_RANGE})*)\)")
_SHORT = re.compile(r"\w+ (?:\d+ of )?\d+x\d+x\d+ ")
_AROUND = "`'\";,. "
"""What stands around a problem in messages, and is copied with it."""


def read(words: Sequence[str]) -> Entry:
    """The problem that the words of PROBLEM name, with its device and ranges if they are named too.

    The words are the canonical text of a problem, with ranges as `names.ranged` writes them; or a JSON line of a
    workload; or FILE:LINE, a line of a workload. Raises InputError.
    """
    text = " ".join(" ".join(words).split())
    if text.startswith("{"):
        return entries.entry(entries.as_object(text, "PROBLEM"), "PROBLEM")
    place = _LINE.fullmatch(text)
    if place is not None and ("=" not in text or os.path.isfile(place["path"])):  # noqa: PTH113 - as below
        return _line(Path(place["path"]), int(place["number"]))
    text = text.strip(_AROUND).removeprefix("problem ").strip()
    found = _RANGED.fullmatch(text)
    ranges = _ranges(found["ranges"]) if found else ()
    try:
        return Entry(Problem.parse(found["text"] if found else text), ranges=ranges)
    except InputError as error:
        raise InputError(_not_a_problem(text, error)) from error


def _line(path: Path, number: int) -> Entry:
    """The entry of a line of a workload."""
    last = ""
    for where, text in entries.lines(path):
        if where != f"{path}:{number}":
            last = where
            continue
        item = entries.as_object(text, where)
        if isinstance(item.get("uncovered"), str):
            raise InputError(f"{where}: gemmdb does not steer {item['uncovered'][:80]}, so no table has it")
        return entries.entry(item, where)
    end = f"its last line is {last}" if last else "it holds no lines"
    raise InputError(f"{path}:{number}: there is no such line, or it is empty; {end}")


def _ranges(text: str) -> Ranges:
    found = []
    for item in text.split(", "):
        name, bounds = item.split(" ")
        low, high = bounds.split("..")
        found.append((name, int(low), int(high) if high else None))
    return tuple(sorted(found))


def _not_a_problem(text: str, error: InputError) -> str:
    """The message for a text that is no problem."""
    if "=" not in text:
        if os.path.isfile(text):  # noqa: PTH113 - Path.is_file raises for a long name
            return f"{text} is a file: name a line of it, {text}:1"
        if _SHORT.match(text):
            return (
                f"{text[:80]!r} is a short name, which leaves fields out: paste the whole text, as --wide prints it, "
                "or name WORKLOAD.jsonl:LINE"
            )
        return f"not a problem: {text[:80]!r}; paste one as `gemmdb explain` prints it, or name WORKLOAD.jsonl:LINE"
    return f"{error}; paste all of the text, from the op to the last field"
