"""Records: their packed form holds what they hold, and damaged bytes are refused."""

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.gpu import ALGORITHM, make
from kit.strategies import measurements
from kit.tables import Kit

from gemmdb import Config, Problem, Status
from gemmdb.errors import InputError
from gemmdb.table import packed_records
from gemmdb.table import record as records
from gemmdb.table.measurement import NOISY
from gemmdb.table.numbering import MOST_BYTES, Numbering
from gemmdb.table.packed_records import MEASURED, Numbers
from gemmdb.table.record import FEW_KERNELS, STEP, Entry, Record, few_kernels
from gemmdb.table.verdict import Verdict, decide_all, pool, unsafe

KIT = Kit()
ROWS = KIT.rows().map(lambda rows: [replace(row, problem=KIT.problem, device=KIT.device) for row in rows])


def entries_of(record: Record) -> list[Entry]:
    """Every entry that `pack` numbers, with repeats."""
    return [Entry(config) for config, _ in record.failed] + [time.entry for one in record.groups for time in one.times]


def numbered(record: Record, verdicts: Sequence[Verdict] = ()) -> tuple[Numbering, bytes]:
    """The numbering of one record, and its packed form."""
    entries = entries_of(record)
    classes = {one.klass for one in record.groups if one.klass is not None}
    contexts = [(one.protocol.key, one.toolchain.key) for one in verdicts]
    numbering = Numbering.of(entries, classes, contexts, configs=[config for one in verdicts for config in one.ties])
    numbers = Numbers.of(numbering)
    states = packed_records.measured(verdicts)
    return numbering, packed_records.pack(record, numbers, packed_records.numbered(verdicts, numbers), states)


def read(record: Record, numbering: Numbering, data: object) -> Record:
    """What is read of packed bytes, by a numbering that was written and read as well."""
    toolchains = {one.key: one for entry in entries_of(record) for one in entry.toolchains}
    again = Numbering.parse(numbering.parts())
    assert again == numbering
    entry = again.reader(lambda number: Config.parse(again.config(number)), toolchains.__getitem__)
    return packed_records.unpack(data, entry, again.classes)


@given(rows=ROWS)
def test_the_packed_form_holds_all_of_a_record_and_its_verdicts(rows):
    found, verdicts = records.record(rows), decide_all(rows)
    numbering, data = numbered(found, verdicts)
    assert read(found, numbering, data) == found
    times = sum(len(one.times) for one in found.groups)
    shared = sum(one.aten_us in {verdict.aten_us for verdict in verdicts} for one in found.groups)
    size = 6 + sum(30 + 2 * len(one.ties) for one in verdicts) + 3 * len(found.failed)
    assert len(data) == size + 12 * len(found.groups) - 7 * shared + 8 * times
    assert sum(packed_records.counts(data)) == times + len(found.failed) - sum(
        len(one.times) for one in found.groups if one.klass is None
    )
    for one, stored in zip(verdicts, packed_records.stored(data), strict=True):
        assert numbering.context_keys()[stored.context] == (one.protocol.key, one.toolchain.key)
        ties = [numbering.config(number) for number in packed_records.tie_numbers(stored.ties)]
        assert ties == [config.text for config in one.ties]
        assert stored[2:] == (one.ratio, one.spread, one.aten_us, one.runs)
    assert data[1] == sum({MEASURED[one.protocol.l2] for one in verdicts})


@given(rows=ROWS)
def test_a_record_holds_what_is_pooled_over_runs(rows):
    found = records.record(rows)
    assert found.banned == unsafe(rows)
    for klass in (None, "cpu-torch2.13"):
        kept = [r for r in rows if r.protocol.l2 == "cold" and (klass is None or r.toolchain.klass == klass)]
        group = found.find("cold", klass)
        pooled = pool(kept, unsafe(rows), slow=True)
        assert [one.config for one in group.times if group] == [one.config for one in pooled] if group else not pooled
        for time, one in zip(group.times if group else (), pooled, strict=True):
            assert time.ratio == pytest.approx(one.ratio, rel=0.51 * STEP)
            spread = min(one.spread, time._replace(width=255).spread)  # A byte holds no wider one, all of them noisy.
            assert spread <= time.spread * (1 + 1e-9) <= max(spread * 1.045, 1e-4)
            assert (time.steady, time.servable) == (one.spread <= NOISY and not one.disturbed, one.servable)
            assert (time.emitted, time.disturbed) == (one.emitted, one.disturbed)
            assert set(time.entry.toolchains) == {row.toolchain for row in one.rows}


@given(one=measurements)
def test_any_measurement_has_a_record(one):
    found = records.record([one])
    numbering, data = numbered(found)
    assert read(found, numbering, data) == found


@settings(max_examples=300)
@given(rows=ROWS, draw=st.data())
def test_damaged_bytes_are_refused_or_are_a_record(rows, draw):
    found = records.record(rows)
    numbering, data = numbered(found, decide_all(rows))
    at = draw.draw(st.integers(0, len(data)))
    damaged = data[:at] + draw.draw(st.binary(max_size=12)) + data[draw.draw(st.integers(at, len(data))) :]
    try:
        again = read(found, numbering, damaged)
    except InputError:
        return
    for group in again.groups:
        assert all(0 < time.ratio < math.inf and 0 <= time.spread < math.inf for time in group.times)
        assert 0 <= group.aten_us < math.inf
    for call in (packed_records.stored, packed_records.counts):
        call(damaged)


@pytest.mark.parametrize("data", [None, 5, "text", b"", b"\x02" + bytes(7), b"\x03\x00\xff\xff" + bytes(4)])
def test_what_is_no_record_is_refused(data):
    with pytest.raises(InputError):
        packed_records.unpack(data, lambda number: Entry(KIT.aten), ["cpu-torch2.13"])
    with pytest.raises(InputError):
        packed_records.counts(data)
    with pytest.raises(InputError):
        packed_records.opened(data, 1, 2)


def test_whether_few_kernels_were_timed_is_known_after_the_first_ones():
    """A record lists a library's algorithms first or last, and its kernels in any order."""
    ours = [Entry(make("tile", stages=stages)) for stages in range(1, 1 + FEW_KERNELS)]
    library = Entry(Config.of("cublaslt", "matmul", **ALGORITHM))
    assert few_kernels([*ours[1:], library])
    assert few_kernels([library, Entry(KIT.aten), *ours[1:], *ours[1:]])
    assert not few_kernels(ours[1:])
    rest = iter([library])
    assert not few_kernels(chain(ours, rest))
    assert list(rest) == [library]


def test_what_was_steady_stays_steady():
    for spread in (NOISY, math.nextafter(NOISY, 1), 0.0, 1e-9, 0.1, 100.0):
        (time,) = records.record([KIT.row(spread=min(spread, 0.999))]).groups[0].times
        assert time.steady == (time.spread <= NOISY)
    (noisy,) = records.record([KIT.row(spread=0.26)]).groups[0].times
    assert not noisy.steady


def test_a_config_with_times_and_a_failure_keeps_both():
    rows = [KIT.row(), KIT.row(KIT.configs[1], 5.0), KIT.row(KIT.configs[1], status=Status.ERROR, run="run-2")]
    found = records.record(rows)
    assert [one.config for one in found.groups[0].times] == [KIT.configs[1], KIT.aten]
    assert found.failed == ((KIT.configs[1], Status.ERROR),)
    assert found.banned == frozenset()


def test_more_configs_than_there_are_numbers_are_refused():
    for name, many in (("configs", ("0",) * 65_537), ("lines", bytes(270_000)), ("contexts", (bytes(16),) * 65_537)):
        with pytest.raises(InputError, match=r"65,537 .*65,536|67,500 .*65,536"):
            Numbering(**{name: many}).checked()


PARTS = Numbering.of(
    [Entry(KIT.aten, (KIT.new,))], ["cpu-torch2.13"], [(1, -2)], [(3, 4)], [KIT.configs[1]], ["mm a=b"]
).parts()


@pytest.mark.parametrize("name", sorted(PARTS))
@pytest.mark.parametrize("part", [None, "text", b"\xff", b"", PARTS["classes"][:-1], PARTS["classes"] + b"\x00"])
def test_a_damaged_numbering_is_refused(name, part):
    with pytest.raises(InputError, match=r"^its numbering .*$"):
        Numbering.parse({**PARTS, name: part})


@pytest.mark.parametrize("name", sorted(PARTS))
@pytest.mark.parametrize("content", [b"\xff", b"{}", b"[1]", b"[" * 9999, b"\x05\x00", bytes(10) + b"\x01"])
def test_a_numbering_with_damaged_content_is_refused_or_has_no_such_texts(name, content):
    try:
        found = Numbering.parse({**PARTS, name: zlib.compress(content)})
    except InputError:
        return
    assert name in ("configs", "entries", "toolchains", "contexts")
    with pytest.raises((InputError, IndexError, struct.error)):
        found.reader(lambda number: Config.parse(found.config(number)), {KIT.new.key: KIT.new}.__getitem__)(1)


@pytest.mark.parametrize("name", sorted(MOST_BYTES))
def test_no_more_of_a_part_is_decompressed_than_fits(name):
    with pytest.raises(InputError, match=f"^its numbering is too long .{name}"):
        Numbering.parse({**PARTS, name: zlib.compress(bytes(MOST_BYTES[name] + 1))})


@pytest.mark.parametrize("short", ["", "9", "x", "-1", "0 1", "²", "00000000000000000000"])
def test_a_short_text_that_is_none_is_refused(short):
    numbering = Numbering(configs=(short, "0"), families=("mm a=b",), forms=("aten:default",))
    assert numbering.op_and_family(0) == ("mm", "a=b")
    assert numbering.config(1) == "aten:default"
    for number in (0, 2, -1):
        with pytest.raises(InputError):
            numbering.config(number)
    for place in ((1, 1, 1, 1, 1), (-1, 1, 1, 1, 1), ("0", 1, 1, 1, 1), (None, 1, 1, 1, 1)):
        with pytest.raises(InputError):
            numbering.problem(place)


def test_a_problem_is_found_at_its_place_only():
    batched = Problem.gemm("bmm", batch=3, m=4, n=5, k=6)
    families = sorted({f"{one.op} {one.family}" for one in (KIT.problem, batched)})
    numbering = Numbering(families=tuple(families))
    for problem in (KIT.problem, batched):
        place = numbering.place(problem)
        assert place is not None
        assert numbering.problem(place) == problem
        for at in range(5):
            for value in ("4", 4.0, -4, None, b"4", "4 k=7"):
                with pytest.raises(InputError):
                    numbering.problem((*place[:at], value, *place[at + 1 :]))
    with pytest.raises(InputError):
        numbering.problem((*numbering.place(KIT.problem)[:4], 2))
    assert numbering.place(KIT.problem.resized(1, 1, 1)) is not None
    assert numbering.place(Problem.gemm("mm", m=4, n=5, k=6, dtype="fp16")) is None


def test_a_sealed_record_is_opened_with_its_own_keys_only():
    content = b"\x03" + bytes(7)
    data = packed_records.sealed(content, 1, -2)
    assert packed_records.opened(data, 1, -2) == content
    for place in range(len(data)):
        torn = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(InputError, match="checksum"):
            packed_records.opened(torn, 1, -2)
    with pytest.raises(InputError, match="checksum"):
        packed_records.opened(data, 2, -2)
