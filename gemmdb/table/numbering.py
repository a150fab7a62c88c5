"""Numbering: what the records of a packed table refer to by number.

The texts of problems and configs are long and repetitive, and their keys are as long as ten numbers. So a packed table
holds each family, kernel form and config once, compressed, and records name them by number. A config is stored as the
number of its form, which is its kernel and the names of its parameters, and its values.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gemmdb.errors import InputError
from gemmdb.kernels.config import Config
from gemmdb.key.canonical import lazy
from gemmdb.key.ops import OPS
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.table.record import Entry

MOST_NUMBERS = 1 << 16
"""Maximum number of configs, of entries and of contexts in a table."""
MOST_FORMS, MOST_FAMILIES, MOST_CLASSES, MOST_SETS, MOST_DEVICES = 1_000, 10_000, 256, 4_096, 10_000
"""Maximum number of forms, families, classes, toolchain sets and devices."""
MOST_TOOLCHAINS = 64  # Maximum number of toolchains in a set
_LINE, _CONTEXT, _DEVICE = struct.Struct("<HH"), struct.Struct(">qq"), struct.Struct("<qI")
MOST_BYTES = {
    "classes": 2**16, "configs": 2**23, "contexts": MOST_NUMBERS * _CONTEXT.size,
    "devices": MOST_DEVICES * _DEVICE.size, "entries": MOST_NUMBERS * _LINE.size, "families": 2**21, "forms": 2**18,
    "toolchains": MOST_SETS * (1 + 8 * MOST_TOOLCHAINS),
}  # fmt: skip
"""Maximum bytes of each part of a numbering, compressed or not. Nothing beyond them is decompressed or parsed."""
_LEVEL = 9
Place = tuple[int, int, int, int, int]
"""Where a packed table holds a problem: the number of its family, N, K, M and the batch."""


@dataclass(frozen=True)
class Numbering:
    """`classes`: toolchain classes. `configs`: short texts. `contexts`: 16 bytes each, the keys of a protocol and of a
    toolchain. `devices`: each device's key, and the stamp of its records. `lines`: 4 bytes per entry, the numbers
    of its config and of its toolchain set. `families`: op and family. `forms`: a kernel's name and its parameter names.
    `sets`: the toolchain keys of each set."""

    classes: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    contexts: tuple[bytes, ...] = ()
    devices: tuple[tuple[int, int], ...] = ()
    lines: bytes = b""
    families: tuple[str, ...] = ()
    forms: tuple[str, ...] = ()
    sets: tuple[tuple[int, ...], ...] = ((),)

    @classmethod
    def of(
        cls,
        entries: Iterable[Entry],
        classes: Iterable[str] = (),
        contexts: Iterable[tuple[int, int]] = (),
        devices: Iterable[tuple[int, int]] = (),
        configs: Iterable[Config] = (),
        families: Iterable[str] = (),
    ) -> Numbering:
        """Build the numbering of these and of the entries' configs. It is deterministic. Raises InputError if there are
        more than fit in a packed table."""
        entries = list(entries)
        texts = sorted({one.text for one in (*configs, *(entry.config for entry in entries))})
        forms = tuple(sorted({_shortened(text)[0] for text in texts}))
        short = _short(forms)
        places = {text: number for number, text in enumerate(texts)}
        keys = [(places[entry.config.text], tuple(one.key for one in entry.toolchains)) for entry in entries]
        sets = sorted({toolchains for _, toolchains in keys})
        number = {toolchains: place for place, toolchains in enumerate(sets)}
        lines = sorted({(config, number[toolchains]) for config, toolchains in keys})
        _check_counts(len(texts), len(lines), len(set(contexts := list(contexts))))  # Before they are packed.
        found = cls(
            tuple(sorted(set(classes))), tuple(map(short, texts)),
            tuple(_CONTEXT.pack(*one) for one in sorted(set(contexts))), tuple(sorted(set(devices))),
            b"".join(_LINE.pack(*line) for line in lines), tuple(sorted(set(families))), forms, tuple(sets),
        )  # fmt: skip
        found.checked().parts()
        return found

    @classmethod
    def parse(cls, parts: Mapping[str, object]) -> Numbering:
        """Parse a table's numbering `parts`. Raises InputError, one line, if they are malformed."""
        if parts.keys() != MOST_BYTES.keys():
            raise InputError("its numbering is incomplete")
        found = {name: _decompressed(name, parts[name]) for name in MOST_BYTES}
        _check_counts(found["configs"].count(b"\n"), 0, 0)
        try:
            classes, families, forms = (_texts(found[name]) for name in ("classes", "families", "forms"))
            configs = tuple(found["configs"].decode().split("\n")) if found["configs"] else ()
            devices = tuple(_DEVICE.iter_unpack(found["devices"]))
            sets = tuple(_sets(found["toolchains"]))
            contexts = tuple(_CONTEXT.pack(*one) for one in _CONTEXT.iter_unpack(found["contexts"]))
        except (ValueError, struct.error, RecursionError) as error:
            raise InputError(f"its numbering is malformed ({error})") from error
        return cls(classes, configs, contexts, devices, found["entries"], families, forms, sets).checked()

    def parts(self) -> dict[str, bytes]:
        """Return the parts that `parse` reads. Raises InputError for one that is too long."""
        sets = (struct.pack(f"<B{len(keys)}q", len(keys), *keys) for keys in self.sets)
        parts = {
            "classes": json.dumps(self.classes, separators=(",", ":")).encode(),
            "configs": "\n".join(self.configs).encode(),
            "contexts": b"".join(self.contexts),
            "devices": b"".join(_DEVICE.pack(*one) for one in self.devices),
            "entries": self.lines,
            "families": json.dumps(self.families, separators=(",", ":")).encode(),
            "forms": json.dumps(self.forms, separators=(",", ":")).encode(),
            "toolchains": b"".join(sets),
        }
        for name, part in parts.items():
            if len(part) > MOST_BYTES[name]:
                raise InputError(f"its numbering is too long ({name})")
        return {name: zlib.compress(part, _LEVEL) for name, part in parts.items()}

    def checked(self) -> Numbering:
        """Return self. Raises InputError if any count exceeds what fits in a packed table."""
        entries, rest = divmod(len(self.lines), _LINE.size)
        _check_counts(len(self.configs), entries, len(self.contexts))
        for what, count, most in (
            ("forms", len(self.forms), MOST_FORMS), ("families", len(self.families), MOST_FAMILIES),
            ("toolchain classes", len(self.classes), MOST_CLASSES), ("sets of toolchains", len(self.sets), MOST_SETS),
            ("toolchains of a set", max(map(len, self.sets), default=0), MOST_TOOLCHAINS),
            ("devices", len(self.devices), MOST_DEVICES),
        ):  # fmt: skip
            if count > most:
                raise InputError(f"{count:,} {what} exceed the {most:,} that fit in a packed table")
        if rest:
            raise InputError("its numbering is cut off")
        return self

    def reader(self, config: Callable[[int], Config], toolchain: Callable[[int], Toolchain]) -> Callable[[int], Entry]:
        """Return a function from numbers to entries, created on first use and then shared. `config`: maps a number to a
        config. It raises IndexError or struct.error for an unknown number."""
        made: dict[int, Entry] = {}

        def entry(number: int) -> Entry:
            found = made.get(number)
            if found is None:
                config_number, place = _LINE.unpack_from(self.lines, number * _LINE.size)
                found = made[number] = Entry(config(config_number), tuple(map(toolchain, self.sets[place])))
            return found

        return entry

    def number(self) -> Callable[[Entry], int]:
        """Return a function from entries to their numbers."""
        places = {keys: number for number, keys in enumerate(self.sets)}
        numbers = {line: number for number, line in enumerate(_LINE.iter_unpack(self.lines))}
        config = self.config_number()
        return lambda entry: numbers[config(entry.config), places[tuple(one.key for one in entry.toolchains)]]

    def config_number(self) -> Callable[[Config], int]:
        """Return a function from configs to their numbers."""
        numbers, short = {text: number for number, text in enumerate(self.configs)}, _short(self.forms)
        return lambda config: numbers[short(config.text)]

    def context_number(self) -> Callable[[tuple[int, int]], int]:
        """Return a function from the keys of a protocol and a toolchain to the number of their context."""
        return {keys: number for number, keys in enumerate(self.context_keys())}.__getitem__

    def context_keys(self) -> list[tuple[int, int]]:
        """Return the keys of the protocol and the toolchain of each context."""
        return [(protocol, toolchain) for protocol, toolchain in map(_CONTEXT.unpack, self.contexts)]

    @lazy
    def _families(self) -> Mapping[str, int]:
        return {text: number for number, text in enumerate(self.families)}

    @lazy
    def _devices(self) -> Mapping[int, int]:
        return {key: number for number, (key, _) in enumerate(self.devices)}

    def family(self, problem: Problem) -> int | None:
        """Return the number of a problem's op and family, None if the table has no such problem."""
        return self._families.get(f"{problem.op} {problem.family}")

    def device(self, key: int) -> int | None:
        """Return the number of a device's key, None if the table has no record of it."""
        return self._devices.get(key)

    def stamp(self, key: int) -> int:
        """Return the stamp of the records of a device's key, 0 if the table has no record of it."""
        number = self.device(key)
        return 0 if number is None else self.devices[number][1]

    def place(self, problem: Problem) -> Place | None:
        """Return where the table holds a problem; None if it has none of the family."""
        family = self.family(problem)
        return None if family is None else (family, problem.n, problem.k, problem.m, problem.batch)

    def problem(self, place: Place) -> Problem:
        """Return the problem at a place. Raises InputError if there can be none."""
        number, n, k, m, batch = place
        op, family = self.op_and_family(number)
        batched = op in OPS and OPS[op].batched
        if any(type(one) is not int for one in place) or (batch != 1 and not batched):
            raise InputError("a problem has impossible sizes")
        head = f"{op} batch={batch}" if batched else op
        return Problem.parse(f"{head} m={m} n={n} k={k} {family}")

    def op_and_family(self, number: int) -> tuple[str, str]:
        """Return the op and the family of a number. Raises InputError for an unknown number."""
        if type(number) is not int or not 0 <= number < len(self.families):
            raise InputError("a problem has an unknown family")
        op, _, family = self.families[number].partition(" ")
        return op, family

    def config(self, number: int) -> str:
        """Return the text of a config's number. Raises InputError for an unknown number or an invalid short text."""
        if not 0 <= number < len(self.configs):
            raise InputError("a config has an unknown number")
        place, *values = self.configs[number].split(" ")
        form = int(place) if place.isascii() and place.isdigit() and len(place) < 6 else len(self.forms)
        if form >= len(self.forms):
            raise InputError("a config has an unknown form")
        name, *names = self.forms[form].split(" ")
        if len(names) != len(values):
            raise InputError("a config does not have the values of its form")
        return " ".join([name, *map("=".join, zip(names, values, strict=True))])


def _check_counts(configs: int, entries: int, contexts: int) -> None:
    for what, count in (
        ("configs", configs), ("pairs of config and toolchains", entries),
        ("pairs of protocol and toolchain", contexts),
    ):  # fmt: skip
        if count > MOST_NUMBERS:
            raise InputError(f"{count:,} {what} exceed the {MOST_NUMBERS:,} that fit in a packed table")


def _short(forms: Sequence[str]) -> Callable[[str], str]:
    """Return a function from a config's text to its short text."""
    places = {form: number for number, form in enumerate(forms)}

    def short(text: str) -> str:
        form, values = _shortened(text)
        return " ".join([str(places[form]), *values])

    return short


def _shortened(text: str) -> tuple[str, list[str]]:
    """Return the form and the values of a config's text."""
    name, *fields = text.split(" ")
    pairs = [one.partition("=") for one in fields]
    return " ".join([name, *(pair[0] for pair in pairs)]), [pair[2] for pair in pairs]


def _decompressed(name: str, part: object) -> bytes:
    """Return a part, of which no more than its MOST_BYTES are decompressed. Raises InputError for anything else."""
    most = MOST_BYTES[name]
    if not isinstance(part, bytes) or len(part) > most + 2**10:
        raise InputError(f"its numbering is malformed ({name})")
    reader = zlib.decompressobj()
    try:
        found = reader.decompress(part, most + 1)
    except zlib.error as error:
        raise InputError(f"its numbering is malformed ({name}: {error})") from error
    if len(found) > most:
        raise InputError(f"its numbering is too long ({name})")
    if not reader.eof or reader.unused_data:
        raise InputError(f"its numbering is cut off ({name})")
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
