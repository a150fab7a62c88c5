"""RowCache: the values that a file's rows refer to, each parsed and validated once.

In a packed table, configs, families and devices have numbers instead of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gemmdb.errors import InputError, TableError
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key import canonical
from gemmdb.key.device import KINDS, Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.table import packed_records, schema
from gemmdb.table.measurement import UNSAFE, Measurement, Protocol, Status, Times, one_line
from gemmdb.table.numbering import Numbering, Place
from gemmdb.table.record import Entry, Record, few_kernels

Fetch = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]
_T = TypeVar("_T")

_LIMIT = 65_536  # Cached values per kind. A full cache is cleared.
_PROBLEM_LIMIT = 4_096  # The same for problems, which take 5 KiB each. A full-file read needs each one once.
CONTEXT_BYTES = 24  # Bytes of the protocol, toolchain and family keys, which precede the keys of the tie set


class Context(NamedTuple):
    """Data shared by many verdicts. `tail`: the end of their problems' texts. `superseded`: see `Protocol`. `ties`: the
    tie sets read so far, by packed keys; their configs all support the op on the device kind."""

    protocol: Protocol
    toolchain: Toolchain
    klass: str
    tail: str
    op: str
    kind: str
    superseded: bool
    ties: dict[bytes, tuple[Config, ...]]


class RowCache:
    """The configs, devices, protocols, toolchains, runs and problems of one file by key, each parsed once.

    `packed`: whether the file is. `resets` counts the files that were at the path. `contexts` caches the results of
    `context` by device kind and the first CONTEXT_BYTES of `keys`; the hot path reads it. Keys are content hashes, so
    values never go stale. Every method raises TableError if the key is missing from the file or its value does not
    match.
    """

    def __init__(self, path: Path, fetch: Fetch, packed: bool = False) -> None:
        self._path, self._fetch = path, fetch
        self._configs: dict[int, Config] = {}
        self._devices: dict[int, Device] = {}
        self._protocols: dict[int, Protocol] = {}
        self._toolchains: dict[int, Toolchain] = {}
        self._runs: dict[int, str] = {}
        self._problems: dict[int, Problem] = {}
        self.contexts: dict[str, dict[bytes, Context]] = {kind: {} for kind in KINDS}
        self.resets = 0
        self.reset(packed)

    def reset(self, packed: bool) -> None:
        """Clear all caches: the path has a different file now. `packed`: whether the new file is packed."""
        self.resets += 1
        self.packed = packed
        self._numbered: tuple[Numbering, Callable[[int], Entry]] | None = None
        self._fault = ""
        for known in (self._configs, self._devices, self._protocols, self._toolchains, self._runs, self._problems):
            known.clear()
        for contexts in self.contexts.values():
            contexts.clear()

    def config(self, key: int) -> Config:
        """Return the config of a key, in a packed table of a number."""
        return self._configs.get(key) or self._load("config", key, Config.parse, self._configs)

    def protocol(self, key: int) -> Protocol:
        """Return the protocol of a key."""
        return self._protocols.get(key) or self._load("protocol", key, Protocol.parse, self._protocols)

    def toolchain(self, key: int) -> Toolchain:
        """Return the toolchain of a key."""
        return self._toolchains.get(key) or self._load("toolchain", key, Toolchain.parse, self._toolchains)

    def problem(self, key: int) -> Problem:
        """Return the problem of a key."""
        return self._problems.get(key) or self._load("problem", key, Problem.parse, self._problems, _PROBLEM_LIMIT)

    def run(self, key: int) -> str:
        """Return the run id of a key."""
        return self._runs.get(key) or self._load("run", key, str, self._runs)

    def device(self, key: int) -> Device:
        """Return the device of a key, with its figures from the file."""
        found = self._devices.get(key)
        if found is None:
            (figures,) = self._row("device", "figures", key)
            with self.errors():
                known = schema.parse_figures(figures)
            found = self._load("device", key, lambda text: Device.parse(text, known), self._devices)
        return found

    def find_device(self, device: Device) -> Device | None:
        """Return the file's own record of `device`, or None."""
        found = self._devices.get(device.key)
        if found is None:
            if not self._fetch("SELECT 1 FROM device WHERE id = ?", (device.key,)):
                return None
            found = self.device(device.key)
        return found if found.text == device.text else None

    def context(self, kind: str, keys: bytes) -> Context:
        """Return the data shared by verdicts for one device kind whose `keys` start with the same protocol, toolchain
        and family."""
        if not isinstance(keys, bytes) or len(keys) < CONTEXT_BYTES:
            raise self.error("a verdict is malformed")
        found = self.contexts[kind].get(keys[:CONTEXT_BYTES])
        if found is None:
            protocol, toolchain, number = schema.unpack_keys(keys[:CONTEXT_BYTES])
            known = self.toolchain(toolchain)
            op, family = self.family(number)
            by = self.protocol(protocol)
            found = Context(by, known, known.klass, f" {family}", op, kind, by.is_superseded(op, kind), {})
            _keep(self.contexts[kind], keys[:CONTEXT_BYTES], found)
        return found

    def ties(self, keys: bytes, context: Context) -> tuple[Config, ...]:
        """Return the configs of packed keys, or of numbers in a packed table, at least one. Each must support the
        context's op and device kind."""
        found = context.ties.get(keys)
        if found is None:
            size = packed_records.TIE_BYTES if self.packed else 8
            if not 0 < len(keys) <= size * schema.MOST_TIES or len(keys) % size:
                raise self.error("a tie set is malformed")
            numbers = packed_records.tie_numbers(keys) if self.packed else schema.unpack_keys(keys)
            found = tuple(map(self.config, numbers))
            for config in found:
                # ATen is on every device, as for `Config.rejection`.
                if config != ATEN and (context.op not in config.spec.ops or context.kind not in config.spec.devices):
                    raise self.error(f"{config.name} does not solve {context.op} on a {context.kind} device")
            _keep(context.ties, keys, found)
        return found

    def numbering(self) -> Numbering:
        """Return the numbering of a packed table."""
        return self._numbers()[0]

    def consistent(self, read: Callable[[], _T]) -> _T:
        """Return the result of `read`, which is called again if another file was opened meanwhile: the numbers of a
        packed table are those of one file."""
        while True:
            resets = self.resets
            found = read()
            if resets == self.resets:
                return found

    def place(self, problem: Problem, device: Device) -> tuple[int, ...] | None:
        """Return the primary key of a problem and device in `record` of a packed table; None if it cannot have one."""
        numbering = self.numbering()
        place, number = numbering.place(problem), numbering.device(device.key)
        return None if place is None or number is None else (*place, number)

    def problem_at(self, place: Place, key: int) -> Problem:
        """Return the problem at a place of a packed table, which must have this key."""
        found = self._problems.get(key)
        numbering = self.numbering()
        if found is None or numbering.place(found) != place:
            with self.errors():
                found = numbering.problem(place)
            if found.key != key:
                raise self.error("a problem does not match its key")
            _keep(self._problems, key, found, _PROBLEM_LIMIT)
        return found

    def device_at(self, number: int) -> Device:
        """Return the device of a number in a packed table."""
        devices = self.numbering().devices
        if type(number) is not int or not 0 <= number < len(devices):
            raise self.error("it refers to a device that it does not contain")
        return self.device(devices[number][0])

    def opened(self, data: Any, problem: int, device: int) -> bytes:
        """Return a packed table's record without its checksum, which belongs to the keys of a problem and a device."""
        with self.errors():
            return packed_records.opened(data, problem, device)

    def record(self, data: bytes, device: Device) -> Record:
        """Unpack an opened record of a packed table."""
        numbering, entry = self._numbers()
        with self.errors():
            return packed_records.unpack(data, entry, numbering.classes, numbering.stamp(device.key))

    def verdicts(self, data: bytes, problem: Problem) -> list[tuple[Any, ...]]:
        """Return the verdicts in an opened record of a packed table like rows of `verdict`. Their `keys` have the
        number of the family in place of its key, and those of the configs, 2 bytes each."""
        contexts, number = self.numbering().contexts, self.numbering().family(problem)
        head, family = problem.head, schema.pack_keys(number or 0)
        try:
            return [
                (contexts[context] + family + ties, ratio, spread, aten_us, runs, head)
                for context, ties, ratio, spread, aten_us, runs in packed_records.stored(data)
            ]
        except (IndexError, InputError) as error:
            raise self.error(f"a verdict is malformed ({error})") from error

    def banned(self, data: bytes) -> frozenset[Config]:
        """Return the configs that were wrong or crashed according to an opened record."""
        with self.errors():
            found = packed_records.failures(data, self._numbers()[1])
            return frozenset(config for config, status in found if status in UNSAFE)

    def few_kernels(self, data: bytes) -> bool:
        """Return whether few of our kernels were timed beside a library's algorithms, according to an opened record."""
        with self.errors():
            return few_kernels(packed_records.timed(data, self._numbers()[1]))

    def measurement(self, row: Sequence[Any]) -> Measurement:
        """Build the Measurement of a row with the columns `schema.COLUMNS`."""
        problem, device, _, config, protocol, toolchain, run, status, *times, error, compile_s, detail = row
        try:
            return Measurement(
                self.problem(problem), self.config(config), self.device(device), self.protocol(protocol),
                self.toolchain(toolchain), self.run(run), Status(status), None if times[0] is None else Times(*times),
                error, compile_s, detail,
            )  # fmt: skip
        except (InputError, TypeError, ValueError, AttributeError) as fault:
            raise self.error(f"a measurement is malformed ({fault})") from fault

    def error(self, what: str) -> TableError:
        """Return the TableError for a problem `what` in the file."""
        told = one_line(what)[:300]  # It may quote the file.
        return TableError(f"{self._path}: {told}; check it with `gemmdb verify`, or upgrade gemmdb if it is newer")

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Convert an InputError inside the block to a TableError."""
        try:
            yield
        except InputError as error:
            raise self.error(str(error)) from error

    def family(self, key: int) -> tuple[str, str]:
        """Return the op and the family of a key, in a packed table of a number."""
        if self.packed:
            with self.errors():
                return self.numbering().op_and_family(key)
        rows = self._fetch("SELECT id FROM problem WHERE family = ? LIMIT 1", (key,))
        problem = self.problem(rows[0][0]) if rows else None
        if problem is None or problem.family_key != key:
            raise self.error("a family does not match its key")
        return problem.op, problem.family

    def _row(self, kind: str, column: str, key: int) -> tuple[Any, ...]:
        rows = self._fetch(f"SELECT {column} FROM {kind} WHERE id = ?", (key,))
        if not rows:
            raise self.error(f"it refers to a {kind} that it does not contain")
        return rows[0]

    def _load(self, kind: str, key: int, parse: Callable[[str], _T], cache: dict[int, _T], limit: int = _LIMIT) -> _T:
        numbered = self.packed and kind == "config"
        if numbered:
            with self.errors():
                text = self.numbering().config(key)
        else:
            (text,) = self._row(kind, "text", key)
        try:
            if not numbered and (not isinstance(text, str) or canonical.key(text) != key):
                raise self.error(f"a {kind} does not match its key")
            value = parse(text)
        except ValueError as error:
            raise self.error(f"a {kind} is not usable ({error})") from error
        _keep(cache, key, value, limit)
        return value

    def _numbers(self) -> tuple[Numbering, Callable[[int], Entry]]:
        found = self._numbered
        if found is None:
            if self._fault:
                raise self.error(self._fault)
            parts: dict[str, object] = dict(self._fetch(schema.NUMBERING_SQL, ()))
            resets = self.resets
            try:
                numbering = Numbering.parse(parts)
            except InputError as error:
                self._fault = str(error)  # Every access needs the numbering, and parsing it again is slow.
                raise self.error(self._fault) from error
            found = numbering, numbering.reader(self.config, self.toolchain)
            if resets == self.resets:
                self._numbered = found
        return found


def _keep(cache: dict[Any, Any], key: Any, value: Any, limit: int = _LIMIT) -> None:
    if len(cache) >= limit:
        cache.clear()
    cache[key] = value
