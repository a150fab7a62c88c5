"""Packed tables that are broken, or replaced while they are open: the other tables answer, and nothing is stale."""

import json
import math
import shutil
import sqlite3
import struct
import zlib
from contextlib import closing
from pathlib import Path

import pytest
from kit.devices import H200
from kit.lab import Lab
from kit.tables import GEMM, SIZES, Kit, edit, tile

from gemmdb import Config
from gemmdb.errors import InputError, TableError
from gemmdb.generators.files.pack import pack
from gemmdb.generators.files.verify import verify
from gemmdb.kernels.registry import KERNELS
from gemmdb.key.problem import Query
from gemmdb.lookup import explain
from gemmdb.settings import Policy
from gemmdb.table import packed_records
from gemmdb.table.catalog import Catalog, Source
from gemmdb.table.numbering import MOST_BYTES, MOST_NUMBERS, MOST_SETS, Numbering
from gemmdb.table.reader import Table

KIT = Kit()
TILES = (tile(), tile(block_n=128))
_HEAD, _VERDICT, _GROUP, _TIME = (struct.Struct(f"<{one}") for one in ("BBBBH", "HHHddd", "BBH", "HhBBh"))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A packed table of a few tiles on an H200."""
    rows = [row for size in SIZES for row in Lab.rows(size, dict.fromkeys(TILES, 0.5), device=H200, clock="graph")]
    pack(KIT.write(tmp_path / "full.db", rows), tmp_path / "small.db")
    return tmp_path / "small.db"


@pytest.fixture
def bad(small: Path) -> Path:
    """A copy of it, to be broken."""
    return Path(shutil.copy(small, small.with_name("bad.db")))


def near_of(*paths: Path):
    """What rung `near` says of a size between the measured ones, by these tables in order."""
    catalog = Catalog([(Source(path, "explicit"), Table.open(path)) for path in paths])
    try:
        query = Query(GEMM.resized(48, 1152, 4096), H200)
        return next(step for step in explain(query, catalog, Policy(near_loss=1.0)) if step.rung == "near")
    finally:
        catalog.close()


def part(path: Path, name: str) -> bytes:
    """A part of a numbering, compressed."""
    with closing(sqlite3.connect(path)) as db:
        found: bytes = db.execute("SELECT data FROM numbering WHERE name = ?", (name,)).fetchone()[0]
        return found


def rewritten(path: Path, change) -> None:
    """Change the records of a table, each with a checksum that holds."""
    with Table.open(path) as table:
        (device,) = table.devices()
    with closing(sqlite3.connect(path)) as db, db:
        for problem, data in db.execute("SELECT problem, data FROM record").fetchall():
            torn = bytearray(packed_records.opened(data, problem, device.key))
            change(torn)
            sealed = packed_records.sealed(bytes(torn), problem, device.key)
            db.execute("UPDATE record SET data = ? WHERE problem = ?", (sealed, problem))


def split_where_there_is_none(path: Path) -> None:
    """Say of every time of the first group that its split of K gives a program per multiprocessor."""

    def change(torn: bytearray) -> None:
        assert torn[2] == 1
        at = _HEAD.size + _VERDICT.size + 2 * _VERDICT.unpack_from(torn, _HEAD.size)[1]
        what, _, count = _GROUP.unpack_from(torn, at)
        assert what & 8
        for place in range(count):
            torn[at + _GROUP.size + 1 + place * _TIME.size + 5] |= 8

    rewritten(path, change)


@pytest.mark.parametrize(
    ("at", "form", "value", "message"),
    [
        (0, "H", 999, "a verdict is malformed"),
        (2, "H", 0, "a tie set is malformed"),
        (2, "H", 65_535, "malformed"),
        (4, "H", 0, "a verdict is malformed"),
        (6, "d", 1e300, "a verdict is malformed"),
        (6, "d", math.nan, "a verdict is malformed"),
        (14, "d", -1.0, "a verdict is malformed"),
        (22, "d", 0.0, "a verdict is malformed"),
        (30, "H", 65_535, "unknown number"),
    ],
)
def test_a_verdict_with_impossible_content_is_refused(bad, at, form, value, message):
    rewritten(bad, lambda torn: struct.pack_into(f"<{form}", torn, _HEAD.size + at, value))
    with Table.open(bad) as table, pytest.raises(TableError, match=message):
        table.verdict(SIZES[0], H200)
    assert verify(bad) != []


def test_a_record_of_another_problem_is_not_served(bad):
    edit(bad, f"UPDATE record SET problem = {SIZES[1].key} WHERE problem = {SIZES[0].key}")
    with Table.open(bad) as table:
        for call in (table.verdict, table.record, table.barred, table.verdicts):
            with pytest.raises(TableError, match="does not match its key"):
                call(SIZES[0], H200)


def surrogates(name: str):
    def change(path: Path) -> None:
        texts = [f"{text}\ud800" for text in json.loads(zlib.decompress(part(path, name)))]
        edit(path, ("UPDATE numbering SET data = ? WHERE name = ?", (zlib.compress(json.dumps(texts).encode()), name)))

    return change


def test_every_kernel_that_splits_k_can_split_it_in_two():
    """A record names the group of a split by the config with a split of 2."""
    domains = [kernel.params["split_k"] for kernel in KERNELS.values() if "split_k" in kernel.params]
    assert domains
    assert all(2 in domain for domain in domains)


@pytest.mark.parametrize("change", [split_where_there_is_none, surrogates("families"), surrogates("forms")])
def test_a_broken_table_leaves_the_others_their_answers(small, bad, change, caplog):
    alone = near_of(small)
    assert alone.hit is not None
    change(bad)
    both = near_of(bad, small)
    assert both.hit is not None
    assert both.hit.config == alone.hit.config
    assert {one["table"] for one in both.evidence["neighbours"]} == {str(small)}
    assert any(str(bad) in message for message in caplog.messages)
    assert verify(bad) != []


def test_whatever_a_table_raises_leaves_out_that_table_alone(small, bad, monkeypatch, caplog):
    def distances(table, *args, read=Table.distances):
        if table.path == bad:
            raise InputError("no text\nof this")
        return read(table, *args)

    monkeypatch.setattr(Table, "distances", distances)
    assert near_of(bad, small).hit is not None
    assert [one for one in caplog.messages if str(bad) in one and "no text of this" in one and "\n" not in one]


@pytest.mark.parametrize("name", MOST_BYTES)
def test_a_part_of_absurd_length_is_refused_before_it_is_parsed(small, name, monkeypatch):
    parts = {one: part(small, one) for one in MOST_BYTES}
    assert all(len(zlib.decompress(parts[one])) * 3 < MOST_BYTES[one] for one in parts)
    monkeypatch.setattr("gemmdb.table.numbering.json.loads", lambda _: pytest.fail("it was parsed"))
    for long in (bytes(2 * MOST_BYTES[name] + 2**10), zlib.compress(bytes(MOST_BYTES[name] + 1))):
        with pytest.raises(InputError, match=f"numbering is .*{name}"):
            Numbering.parse({**parts, name: long})


def test_sets_of_toolchains_are_read_up_to_the_limit(small):
    parts = {one: part(small, one) for one in MOST_BYTES}
    with pytest.raises(InputError, match=f"{MOST_SETS + 1:,} sets of toolchains exceed"):
        Numbering.parse(parts | {"toolchains": zlib.compress(bytes(MOST_BYTES["toolchains"]))})


def test_configs_are_counted_before_they_are_read(small):
    parts = {one: part(small, one) for one in MOST_BYTES}
    with pytest.raises(InputError, match="configs exceed"):
        Numbering.parse(parts | {"configs": zlib.compress(b"\n" * MOST_NUMBERS * 2)})


def test_a_malformed_numbering_is_parsed_once_and_verify_stops_there(bad, monkeypatch):
    parsed = []

    def parse(parts, real=Numbering.parse):
        parsed.append(parts)
        return real(parts)

    monkeypatch.setattr(Numbering, "parse", parse)
    edit(bad, ("UPDATE numbering SET data = ? WHERE name = 'families'", (zlib.compress(b"[[],[]]"),)))
    with Table.open(bad) as table:
        for _ in range(3):
            with pytest.raises(TableError, match="numbering is malformed"):
                list(table.pairs())
    assert len(parsed) == 1
    assert [one.check for one in verify(bad)] == ["text"]
    assert len(parsed) == 2


@pytest.mark.parametrize("immutable", [False, True])
def test_a_table_that_is_replaced_is_read_anew_when_it_opens_again(tmp_path, immutable):
    def write(name: str, configs: tuple[Config, ...]) -> Path:
        rows = [KIT.row(config, us) for config, us in zip(configs, (10.0, 5.0, 7.0, 20.0), strict=False)]
        full = KIT.write(tmp_path / f"{name}-full.db", rows)
        pack(full, tmp_path / f"{name}.db")
        return full

    first = min(KIT.configs[1:], key=lambda config: config.key)
    full = write("new", KIT.configs)
    write("served", tuple(config for config in KIT.configs if config != first))
    with Table.open(tmp_path / "new.db") as new, Table.open(tmp_path / "served.db", immutable=immutable) as table:
        wanted = new.record(KIT.problem, KIT.device)
        assert wanted is not None
        assert table.record(KIT.problem, KIT.device) not in (None, wanted)
        assert table.neighbours(KIT.problem, KIT.device)
        shutil.copy(tmp_path / "new.db", tmp_path / "part")
        (tmp_path / "part").replace(table.path)
        table.close()
        assert table.record(KIT.problem, KIT.device) == wanted
        assert table.verdict(KIT.problem, KIT.device) == new.verdict(KIT.problem, KIT.device)
        assert table.digest == new.digest
        assert new.digest in table.state()
        shutil.copy(full, tmp_path / "part")
        (tmp_path / "part").replace(table.path)
        table.close()
        assert len(table.neighbours(KIT.problem, KIT.device)) == 1
        assert not table.packed
        assert len(table.rows(KIT.problem, KIT.device)) == len(KIT.configs)


def test_a_file_that_sqlite_cannot_create_is_refused_in_one_line(small, tmp_path):
    with pytest.raises(TableError, match=r"cannot be packed to .*unable to open") as raised:
        pack(tmp_path / "full.db", tmp_path / f"{'x' * 240}.db")
    assert "\n" not in str(raised.value)
