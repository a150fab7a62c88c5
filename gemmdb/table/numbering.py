"""Numbering: what a packed table names by number: entries, toolchain classes, families, and forms of configs.

The texts of problems and configs are long and much alike. So a packed table holds the text of each family once, and of
a problem the number of its family, op and sizes; and the names of a kernel's parameters once, as a form, and of a
config the number of its form and its values.
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
"""The most entries, forms, families, classes, and sets of toolchains of a table."""
MOST_TOOLCHAINS = 64  # The most toolchains of a set
_LINE = struct.Struct("<qH")
MOST_BYTES = {
    "classes": 2**16, "entries": MOST_ENTRIES * _LINE.size, "families": 2**21, "forms": 2**18,
    "toolchains": MOST_SETS * (1 + 8 * MOST_TOOLCHAINS),
}  # fmt: skip
"""The most bytes of each part of a numbering. It is checked before anything is parsed."""


@dataclass(frozen=True)
class Numbering:
    """`classes`: toolchain classes. `families`: their texts. `forms`: a kernel's name and those of its parameters.
    `lines`: for each entry 10 bytes, the key of its config and the number of its set of toolchains. `sets`: the keys of
    these toolchains."""

    classes: tuple[str, ...]
    families: tuple[str, ...]
    forms: tuple[str, ...]
    lines: bytes
    sets: tuple[tuple[int, ...], ...]

    @classmethod
    def of(
        cls, entries: Iterable[Entry], classes: Iterable[str], configs: Iterable[str], families: Iterable[str] = ()
    ) -> Numbering:
        """The numbering of these entries, classes and families, and of all `configs`, by their texts. It depends on
        nothing else. Raises InputError if there are more than a packed table has room for."""
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
        """The numbering of the `parts` of a table. Raises InputError, one line, if they are malformed."""
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
        """The parts that `parse` reads."""
        sets = (struct.pack(f"<B{len(keys)}q", len(keys), *keys) for keys in self.sets)
        return {
            "classes": json.dumps(self.classes, separators=(",", ":")).encode(),
            "entries": self.lines,
            "families": json.dumps(self.families, separators=(",", ":")).encode(),
            "forms": json.dumps(self.forms, separators=(",", ":")).encode(),
            "toolchains": b"".join(sets),
        }

    def checked(self) -> Numbering:
        """This. Raises InputError if there is more of anything than a packed table has room for."""
        size, rest = divmod(len(self.lines), _LINE.size)
        for what, count, most in (
            ("pairs of config and toolchains", size, MOST_ENTRIES), ("forms", len(self.forms), MOST_FORMS),
            ("families", len(self.families), MOST_FAMILIES),
            ("toolchain classes", len(self.classes), MOST_CLASSES), ("sets of toolchains", len(self.sets), MOST_SETS),
            ("toolchains of a set", max(map(len, self.sets), default=0), MOST_TOOLCHAINS),
        ):  # fmt: skip
            if count > most:
                raise InputError(f"{count:,} {what} are more than the {most:,} that a packed table has room for")
        if rest:
            raise InputError("its numbering is cut off")
        return self

    def reader(self, config: Callable[[int], Config], toolchain: Callable[[int], Toolchain]) -> Callable[[int], Entry]:
        """A function from numbers to entries, each made at its first use and then shared. It raises IndexError or
        struct.error for a number that there is not."""
        made: dict[int, Entry] = {}

        def entry(number: int) -> Entry:
            found = made.get(number)
            if found is None:
                key, place = _LINE.unpack_from(self.lines, number * _LINE.size)
                found = made[number] = Entry(config(key), tuple(map(toolchain, self.sets[place])))
            return found

        return entry

    def number(self) -> Callable[[Entry], int]:
        """A function from entries to their numbers."""
        places = {keys: number for number, keys in enumerate(self.sets)}
        numbers = {line: number for number, line in enumerate(_LINE.iter_unpack(self.lines))}
        return lambda entry: numbers[entry.config.key, places[tuple(one.key for one in entry.toolchains)]]

    def short(self) -> Callable[[str], str]:
        """A function from the text of a config to its short text in the table."""
        places = {form: number for number, form in enumerate(self.forms)}

        def short(text: str) -> str:
            form, values = _shortened(text)
            return " ".join([str(places[form]), *values])

        return short

    def short_problem(self) -> Callable[[Problem], str]:
        """A function from problems to their short texts in the table."""
        places = {text: number for number, text in enumerate(self.families)}
        return lambda problem: f"{places[problem.family]} {problem.head}"

    def long_problem(self, text: str) -> str:
        """The text of a problem whose short text this is. Raises InputError if it is none."""
        place, _, head = text.partition(" ")
        return f"{head} {_at(self.families, place, 'a problem has an unknown family')}"

    def long(self, text: str) -> str:
        """The text of a config whose short text this is. Raises InputError if it is none."""
        place, *values = text.split(" ")
        name, *names = _at(self.forms, place, "a config has an unknown form").split(" ")
        if len(names) != len(values):
            raise InputError("a config does not have the values of its form")
        return " ".join([name, *map("=".join, zip(names, values, strict=True))])


def _shortened(text: str) -> tuple[str, list[str]]:
    """The form of a config's text, and its values."""
    name, *fields = text.split(" ")
    pairs = [one.partition("=") for one in fields]
    return " ".join([name, *(pair[0] for pair in pairs)]), [pair[2] for pair in pairs]


def _at(texts: Sequence[str], place: str, otherwise: str) -> str:
    number = int(place) if place.isascii() and place.isdigit() and len(place) < 6 else len(texts)
    if number >= len(texts):
        raise InputError(otherwise)
    return texts[number]


def _check_bytes(parts: Mapping[str, object]) -> dict[str, bytes]:
    """The parts. Raises InputError for one that is too long, or no bytes."""
    found = {}
    for name, most in MOST_BYTES.items():
        part = parts[name]
        if not isinstance(part, bytes):
            raise InputError("its numbering is incomplete")
        if len(part) > most:
            size = f"{len(part):,} bytes of {name}"
            raise InputError(f"{size} are more than the {most:,} that a packed table has room for")
        found[name] = part
    return found


def _texts(part: bytes) -> tuple[str, ...]:
    found = json.loads(part)
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError("a part is not a list of texts")
    for one in found:
        one.encode()  # JSON can spell lone surrogates, of which no key can be made.
    return tuple(found)


def _sets(part: bytes) -> Sequence[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    at = 0
    while at < len(part) and len(found) <= MOST_SETS:  # One more, so that `checked` says that there are too many.
        end = at + 1 + 8 * part[at]
        found.append(struct.unpack(f"<{part[at]}q", part[at + 1 : end]))
        at = end
    return found
