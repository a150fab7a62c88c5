"""Records: their packed form holds what they hold, and damaged bytes are refused."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.strategies import measurements
from kit.tables import Kit

from gemmdb import Status
from gemmdb.errors import InputError
from gemmdb.table import packed_records
from gemmdb.table import record as records
from gemmdb.table.measurement import NOISY
from gemmdb.table.numbering import Numbering
from gemmdb.table.record import STEP, Entry, Record
from gemmdb.table.verdict import pool, unsafe

KIT = Kit()
ROWS = KIT.rows().map(lambda rows: [replace(row, problem=KIT.problem, device=KIT.device) for row in rows])


def numbered(record: Record) -> tuple[Numbering, bytes]:
    """The numbering of one record, and its packed form."""
    entries = list(packed_records.entries(record))
    classes = {one.klass for one in record.groups if one.klass is not None}
    numbering = Numbering.of(entries, classes, {entry.config.text for entry in entries})
    return numbering, packed_records.pack(record, numbering.number(), numbering.classes.index)


def read(record: Record, numbering: Numbering, data: object) -> Record:
    """What is read of packed bytes, by a numbering that was written and read as well."""
    entries = list(packed_records.entries(record))
    configs = {entry.config.key: entry.config for entry in entries}
    toolchains = {one.key: one for entry in entries for one in entry.toolchains}
    again = Numbering.parse(numbering.parts())
    assert again == numbering
    return packed_records.unpack(data, again.reader(configs.__getitem__, toolchains.__getitem__), again.classes)


@given(rows=ROWS)
def test_the_packed_form_holds_all_of_a_record(rows):
    found = records.record(rows)
    numbering, data = numbered(found)
    assert read(found, numbering, data) == found
    times = sum(len(one.times) for one in found.groups)
    assert len(data) == 8 + 12 * len(found.groups) + 8 * times + 3 * len(found.failed)
    assert sum(packed_records.counts(data)) == times + len(found.failed) - sum(
        len(one.times) for one in found.groups if one.klass is None
    )


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
            assert one.spread <= time.spread * (1 + 1e-9) <= max(one.spread * 1.045, 1e-4)
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
    numbering, data = numbered(found)
    at = draw.draw(st.integers(0, len(data)))
    damaged = data[:at] + draw.draw(st.binary(max_size=12)) + data[draw.draw(st.integers(at, len(data))) :]
    try:
        again = read(found, numbering, damaged)
    except InputError:
        return
    for group in again.groups:
        assert all(0 < time.ratio < math.inf and 0 <= time.spread < math.inf for time in group.times)
        assert 0 <= group.aten_us < math.inf


@pytest.mark.parametrize("data", [None, 5, "text", b"", b"\x03" + bytes(7), b"\x01\xff\xff\xff" + bytes(4)])
def test_what_is_no_record_is_refused(data):
    with pytest.raises(InputError):
        packed_records.unpack(data, lambda number: Entry(KIT.aten), ["cpu-torch2.13"])
    with pytest.raises(InputError):
        packed_records.counts(data)


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
    with pytest.raises(InputError, match="65,536"):
        Numbering((), (), (), bytes(700_000), ((),)).checked()


PARTS = Numbering.of([Entry(KIT.aten, (KIT.new,))], ["cpu-torch2.13"], [KIT.aten.text]).parts()


@pytest.mark.parametrize("name", sorted(PARTS))
@pytest.mark.parametrize("part", [None, "text", b"\xff", b"{}", b"[1]", b"[" * 9999, b"\x05\x00", bytes(10) + b"\x01"])
def test_a_damaged_numbering_is_refused(name, part):
    with pytest.raises(InputError, match=r"^its numbering .*$"):
        Numbering.parse({**PARTS, name: part})


@pytest.mark.parametrize("short", ["", "9", "x", "-1", "0 1", "²", "00000000000000000000"])
def test_a_short_text_that_is_none_is_refused(short):
    numbering = Numbering((), ("a=b",), ("aten:default",), b"", ())
    assert numbering.long_problem("0 mm m=1") == "mm m=1 a=b"
    if short != "0 1":
        with pytest.raises(InputError):
            numbering.long_problem(short)
    assert numbering.long("0") == "aten:default"
    with pytest.raises(InputError):
        numbering.long(short)


def test_a_sealed_record_is_opened_with_its_own_keys_only():
    data = packed_records.sealed(b"\x01" + bytes(7), 1, -2)
    assert packed_records.opened(data, 1, -2) == b"\x01" + bytes(7)
    assert packed_records.opened(b"\x01" + bytes(7), 1, -2) == b"\x01" + bytes(7)
    for place in range(1, len(data)):
        torn = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(InputError, match="checksum"):
            packed_records.opened(torn, 1, -2)
    with pytest.raises(InputError, match="checksum"):
        packed_records.opened(data, 2, -2)
