"""SQLite files whose b-trees have no end: small files that hold more rows than anybody can read.

The children of a page may be the same page. Then a tree of ten levels has as many rows as one with a page for each. And
a page on which a long value goes on may follow itself. (https://www.sqlite.org/fileformat2.html)
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

Value = int | float | str | bytes | None
_TABLE, _INDEX = (0x05, 0x0D), (0x02, 0x0A)
"""The kinds of inner pages and of leaves."""
_WIDTHS = ((1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (6, 8))
"""Serial types of integers, with their bytes."""


class File:
    """The pages of a table file, to be changed and written back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = bytearray(path.read_bytes())
        self.size = int.from_bytes(self.data[16:18], "big")
        with closing(sqlite3.connect(path)) as db:
            self.roots = dict(db.execute("SELECT name, rootpage FROM sqlite_master"))

    def save(self) -> None:
        """Write the file, with the number of its pages in its header."""
        self.data[28:32] = (len(self.data) // self.size).to_bytes(4, "big")
        self.data[92:96] = self.data[24:28]
        self.path.write_bytes(self.data)

    def page(self) -> int:
        """The number of a new page."""
        self.data += bytes(self.size)
        return len(self.data) // self.size

    def endless_index(self, name: str, *values: Value, levels: int = 12) -> None:
        """An index, or a table without rowids, that repeats one row."""
        cell = _long(row := record(*values)) + row
        child = self._filled(_INDEX[1], cell)
        for level in range(levels):
            number = self.roots[name] if level == levels - 1 else None
            child = self._filled(_INDEX[0], child.to_bytes(4, "big") + cell, child, number)

    def long_index(self, name: str, *values: Value, length: int) -> None:
        """The same with a row that ends with a value of this length, on a page that follows itself."""
        row = record(*values, bytes(length))
        follows = self.page()
        self.data[(follows - 1) * self.size : follows * self.size] = follows.to_bytes(4, "big") + bytes(self.size - 4)
        # What of a row is in the page itself, by the format: as much as leaves whole pages for the rest, or the least.
        least, most = (self.size - 12) * 32 // 255 - 23, (self.size - 12) * 64 // 255 - 23
        local = least + (len(row) - least) % (self.size - 4)
        local = local if local <= most else least
        cell = _long(row) + row[:local] + follows.to_bytes(4, "big")
        child = self._filled(_INDEX[1], cell)
        for number in (None, None, self.roots[name]):
            child = self._filled(_INDEX[0], child.to_bytes(4, "big") + cell, child, number)
        while len(self.data) < len(row):  # SQLite takes no row that is longer than the file.
            self.page()

    def repeat(self, name: str, levels: int = 12) -> None:
        """Let all rows of an index or a table, which is one page so far, come again and again. Whoever reads on behind
        any row but the last comes to the first ones again."""
        root = self.roots[name]
        begin = (root - 1) * self.size
        page = self.data[begin : begin + self.size]
        kind, count = page[0], int.from_bytes(page[3:5], "big")
        assert kind in (_TABLE[1], _INDEX[1]), "it is a leaf"
        at = int.from_bytes(page[8 + 2 * (count - 1) : 10 + 2 * (count - 1)], "big")
        length, head = _read(page, at)
        last = bytes(page[at : at + head + length])
        if kind == _TABLE[1]:
            key = _read(page, at + head)[1]
            last = bytes(page[at + head : at + head + key])
        child = self.page()
        self.data[(child - 1) * self.size : child * self.size] = page
        inner = _TABLE[0] if kind == _TABLE[1] else _INDEX[0]
        for level in range(levels):
            child = self._filled(inner, child.to_bytes(4, "big") + last, child, root if level == levels - 1 else None)

    def endless_table(self, name: str, key: int, *values: Value, levels: int = 12) -> None:
        """A table that repeats one row."""
        row = record(*values)
        child = self._filled(_TABLE[1], _long(len(row)) + _long(key) + row)
        for level in range(levels):
            number = self.roots[name] if level == levels - 1 else None
            child = self._filled(_TABLE[0], child.to_bytes(4, "big") + _long(key), child, number)

    def long_table(self, name: str, rows: Mapping[int, Sequence[Value]], length: int) -> None:
        """A table of these rows, each with a last text of this length that begins as it is given and goes on in spaces,
        on one page that follows itself."""
        follows = self.page()
        spaces = follows.to_bytes(4, "big") + b" " * (self.size - 4)
        self.data[(follows - 1) * self.size : follows * self.size] = spaces
        least, cells = (self.size - 12) * 32 // 255 - 23, []
        for key, (*values, text) in sorted(rows.items()):
            row = record(*values, str(text).ljust(length))
            local = least + (len(row) - least) % (self.size - 4)
            local = local if local <= self.size - 35 else least
            cells.append(_long(row) + _long(key) + row[:local] + follows.to_bytes(4, "big"))
        page, place = bytearray(self.size), self.size
        for index, cell in enumerate(cells):
            place -= len(cell)
            page[place : place + len(cell)] = cell
            page[8 + 2 * index : 10 + 2 * index] = place.to_bytes(2, "big")
        page[0], page[3:5], page[5:7] = _TABLE[1], len(cells).to_bytes(2, "big"), place.to_bytes(2, "big")
        assert place >= 8 + 2 * len(cells), "they fit in one page"
        begin = (self.roots[name] - 1) * self.size
        self.data[begin : begin + self.size] = page

    def endless_schema(self, levels: int = 12) -> None:
        """A list of tables and indices whose first page, that of the file, is its own child."""
        first, head = bytes(self.data[100 : self.size]), 12
        count = int.from_bytes(first[3:5], "big")
        leaf = self.page()
        self.data[(leaf - 1) * self.size : leaf * self.size] = bytes(self.size)
        page = bytearray(self.data[: self.size])
        # The rows of the leaf stay at their offsets, behind a header that does not begin at byte 100.
        page[0:100] = bytes(100)
        page[0 : 8 + 2 * count] = first[: 8 + 2 * count]
        self.data[(leaf - 1) * self.size : leaf * self.size] = page
        child = leaf
        for _ in range(levels):
            child = self._filled(_TABLE[0], child.to_bytes(4, "big") + _long(count), child)
        inner = bytearray(self.size - 100)
        cells = (child.to_bytes(4, "big") + _long(count)) * 100
        begin = self.size - len(cells)
        inner[0], inner[3:5], inner[5:7] = _TABLE[0], (100).to_bytes(2, "big"), begin.to_bytes(2, "big")
        inner[8:12] = (1).to_bytes(4, "big")
        for index in range(100):
            place = begin + index * (len(cells) // 100)
            inner[head + 2 * index : head + 2 * index + 2] = place.to_bytes(2, "big")
        inner[begin - 100 :] = cells
        self.data[100 : self.size] = inner

    def _filled(self, kind: int, cell: bytes, right: int | None = None, number: int | None = None) -> int:
        """A page full of one cell; its number. `right`: the last child of an inner page."""
        number = number or self.page()
        head = 8 if right is None else 12
        count = min((self.size - head) // (len(cell) + 2), 400)
        begin = self.size - count * len(cell)
        page = bytearray(self.size)
        page[0] = kind
        page[3:5], page[5:7] = count.to_bytes(2, "big"), begin.to_bytes(2, "big")
        if right is not None:
            page[8:12] = right.to_bytes(4, "big")
        for index in range(count):
            place = begin + index * len(cell)
            page[place : place + len(cell)] = cell
            page[head + 2 * index : head + 2 * index + 2] = place.to_bytes(2, "big")
        self.data[(number - 1) * self.size : number * self.size] = page
        return number


def record(*values: Value) -> bytes:
    """One row in SQLite's record format."""
    kinds, parts = zip(*map(_serial, values), strict=True)
    head = b"".join(_long(kind) for kind in kinds)
    assert len(head) < 127, "the length of the header is one byte"
    return _long(len(head) + 1) + head + b"".join(parts)


def _read(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """A variable-length integer, and how many bytes it takes."""
    found = 0
    for place in range(8):
        found = found << 7 | data[at + place] & 0x7F
        if data[at + place] < 0x80:
            return found, place + 1
    return found << 8 | data[at + 8], 9


def _serial(value: Value) -> tuple[int, bytes]:
    if value is None:
        return 0, b""
    if isinstance(value, int):
        kind, width = next(pair for pair in _WIDTHS if -(1 << 8 * pair[1] - 1) <= value < 1 << 8 * pair[1] - 1)
        return kind, value.to_bytes(width, "big", signed=True)
    if isinstance(value, float):
        return 7, struct.pack(">d", value)
    data = value if isinstance(value, bytes) else str(value).encode()
    return 2 * len(data) + (12 if isinstance(value, bytes) else 13), data


def _long(number: int | bytes) -> bytes:
    """A variable-length integer: of a number, or of how many bytes there are."""
    rest = (len(number) if isinstance(number, bytes) else number) % (1 << 64)
    if rest >= 1 << 56:
        last = bytes([rest & 0xFF])
        rest >>= 8
        return bytes(0x80 | rest >> 7 * place & 0x7F for place in range(7, -1, -1)) + last
    found = [rest & 0x7F]
    while rest := rest >> 7:
        found.append(0x80 | rest & 0x7F)
    return bytes(reversed(found))
