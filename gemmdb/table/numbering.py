"""Numbering: the entries, toolchain classes, families and config forms that a packed table refers to by number.

The texts of problems and configs are long and repetitive. So a packed table stores each family's text once, and for a
problem its family number, op and sizes. It stores a kernel's parameter names once, as a form, and for a config its form
number and values.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gemmdb.errors import InputError
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.table.record import Entry

MOST_ENTRIES, MOST_FORMS, MOST_FAMILIES, MOST_CLASSES, MOST_SETS = 1 << 16, 1_000, 10_000, 256, 4_096
"""Maximum number of entries, forms, families, classes and toolchain sets in a table."""
MOST_TOOLCHAINS = 64  # Maximum number of toolchains in a set
_LINE = struct.Struct("<qH")
MOST_BYTES = {
    "classes": 2**16, "entries": MOST_ENTRIES * _LINE.size, "families": 2**21, "forms": 2**18,
    "toolchains": MOST_SETS * (1 + 8 * MOST_TOOLCHAINS),
}  # fmt: skip
"""Maximum bytes of each part of a numbering. Checked before parsing."""


@dataclass(frozen=True)
class Numbering:
    """`classes`: toolchain classes. `families`: family texts. `forms`: a kernel's name and its parameter names.
    `lines`: 10 bytes per entry, its config key and the number of its toolchain set. `sets`: the toolchain keys of each
    set."""

    classes: tuple[str, ...]
    families: tuple[str, ...]
    forms: tuple[str, ...]
    lines: bytes
    sets: tuple[tuple[int, ...], ...]

    @classmethod
    def of(
        cls, entries: Iterable[Entry], classes: Iterable[str], configs: Iterable[str], families: Iterable[str] = ()
    ) -> Numbering:
        """Build the numbering of these entries, classes, families and `configs` (texts). It is deterministic. Raises
        InputError if there are more than fit in a packed table."""
        keys = [(entry.config.key, tuple(one.key for one in entry.toolchains)) for entry in entries]
        sets = sorted({toolchains for _, toolchains in keys})
        place = {toolchains: number for number, toolchains in enumerate(sets)}
        lines = sorted({(config, place[toolchains]) for config, toolchains in keys})
        found = cls(
            tuple(sorted(set(classes))), tuple(sorted(set(families))),
            tuple(sorted({_shortened(text)[0] for text in configs})), b"".join(_LINE.pack(*line) for line in lines),
            tuple(sets),
        )  # fmt: skip
        _check_bytes(found.checked().parts())
        return found

    @classmethod
    def parse(cls, parts: Mapping[str, object]) -> Numbering:
        """Parse a table's numbering `parts`. Raises InputError, one line, if they are malformed."""
        if parts.keys() != MOST_BYTES.keys():
            raise InputError("its numbering is incomplete")
        found = _check_bytes(parts)
        try:
            classes, families, forms = (_texts(found[name]) for name in ("classes", "families", "forms"))
            numbering = cls(classes, families, forms, found["entries"], tuple(_sets(found["toolchains"])))
        except (ValueError, struct.error, RecursionError) as error:
            raise InputError(f"its numbering is malformed ({error})") from error
        return numbering.checked()

    def parts(self) -> dict[str, bytes]:
        """Return the parts that `parse` reads."""
        sets = (struct.pack(f"<B{len(keys)}q", len(keys), *keys) for keys in self.sets)
        return {
            "classes": json.dumps(self.classes, separators=(",", ":")).encode(),
            "entries": self.lines,
            "families": json.dumps(self.families, separators=(",", ":")).encode(),
            "forms": json.dumps(self.forms, separators=(",", ":")).encode(),
            "toolchains": b"".join(sets),
        }

    def checked(self) -> Numbering:
        """Return self. Raises InputError if any count exceeds what fits in a packed table."""
        size, rest = divmod(len(self.lines), _LINE.size)
        for what, count, most in (
            ("pairs of config and toolchains", size, MOST_ENTRIES), ("forms", len(self.forms), MOST_FORMS),
            ("families", len(self.families), MOST_FAMILIES),
            ("toolchain classes", len(self.classes), MOST_CLASSES), ("sets of toolchains", len(self.sets), MOST_SETS),
            ("toolchains of a set", max(map(len, self.sets), default=0), MOST_TOOLCHAINS),
        ):  # fmt: skip
            if count > most:
                raise InputError(f"{count:,} {what} exceed the {most:,} that fit in a packed table")
        if rest:
            raise InputError("its numbering is cut off")
        return self

    def reader(self, config: Callable[[int], Config], toolchain: Callable[[int], Toolchain]) -> Callable[[int], Entry]:
        """Return a function from numbers to entries, created on first use and then shared. It raises IndexError or
        struct.error for an unknown number."""
        made: dict[int, Entry] = {}

        def entry(number: int) -> Entry:
            found = made.get(number)
            if found is None:
                key, place = _LINE.unpack_from(self.lines, number * _LINE.size)
                found = made[number] = Entry(config(key), tuple(map(toolchain, self.sets[place])))
            return found

        return entry

    def number(self) -> Callable[[Entry], int]:
        """Return a function from entries to their numbers."""
        places = {keys: number for number, keys in enumerate(self.sets)}
        numbers = {line: number for number, line in enumerate(_LINE.iter_unpack(self.lines))}
        return lambda entry: numbers[entry.config.key, places[tuple(one.key for one in entry.toolchains)]]

    def short(self) -> Callable[[str], str]:
        """Return a function from a config's text to its short text in the table."""
        places = {form: number for number, form in enumerate(self.forms)}

        def short(text: str) -> str:
            form, values = _shortened(text)
            return " ".join([str(places[form]), *values])

        return short

    def short_problem(self) -> Callable[[Problem], str]:
        """Return a function from problems to their short texts in the table."""
        places = {text: number for number, text in enumerate(self.families)}
        return lambda problem: f"{places[problem.family]} {problem.head}"

    def long_problem(self, text: str) -> str:
        """Return the full text for a problem's short text. Raises InputError if it is invalid."""
        place, _, head = text.partition(" ")
        return f"{head} {_at(self.families, place, 'a problem has an unknown family')}"

    def long(self, text: str) -> str:
        """Return the full text for a config's short text. Raises InputError if it is invalid."""
        place, *values = text.split(" ")
        name, *names = _at(self.forms, place, "a config has an unknown form").split(" ")
        if len(names) != len(values):
            raise InputError("a config does not have the values of its form")
        return " ".join([name, *map("=".join, zip(names, values, strict=True))])


def _shortened(text: str) -> tuple[str, list[str]]:
    """Return the form and the values of a config's text."""
    name, *fields = text.split(" ")
    pairs = [one.partition("=") for one in fields]
    return " ".join([name, *(pair[0] for pair in pairs)]), [pair[2] for pair in pairs]


def _at(texts: Sequence[str], place: str, otherwise: str) -> str:
    number = int(place) if place.isascii() and place.isdigit() and len(place) < 6 else len(texts)
    if number >= len(texts):
        raise InputError(otherwise)
    return texts[number]


def _check_bytes(parts: Mapping[str, object]) -> dict[str, bytes]:
    """Return the parts. Raises InputError for a part that is too long or not bytes."""
    found = {}
    for name, most in MOST_BYTES.items():
        part = parts[name]
        if not isinstance(part, bytes):
            raise InputError("its numbering is incomplete")
        if len(part) > most:
            size = f"{len(part):,} bytes of {name}"
            raise InputError(f"{size} exceed the {most:,} that fit in a packed table")
        found[name] = part
    return found


def _texts(part: bytes) -> tuple[str, ...]:
    found = json.loads(part)
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError("a part is not a list of texts")
    for one in found:
        one.encode()  # JSON can contain lone surrogates, which cannot be hashed to a key.
    return tuple(found)


def _sets(part: bytes) -> Sequence[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    at = 0
    while at < len(part) and len(found) <= MOST_SETS:  # One more, so that `checked` reports too many.
        end = at + 1 + 8 * part[at]
        found.append(struct.unpack(f"<{part[at]}q", part[at + 1 : end]))
        at = end
    return found
