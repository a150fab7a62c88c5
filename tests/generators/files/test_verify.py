"""`verify` finds every way in which a file is not what it says; the manifest describes files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from kit.tables import edit

from gemmdb import Config, Problem, Protocol, Status, TableError
from gemmdb.generators.files.manifest import write_manifest
from gemmdb.generators.files.pack import pack
from gemmdb.generators.files.verify import verify
from gemmdb.kernels.config import ATEN
from gemmdb.table import schema
from gemmdb.table.writer import Store


@pytest.fixture
def path(kit, tmp_path):
    rows = [kit.row(c, us, problem=p) for p in kit.problems for c, us in zip(kit.configs[:2], (10.0, 5.0), strict=True)]
    return kit.write(tmp_path / "t.db", rows)


def test_a_good_table_has_no_findings(path):
    assert verify(path) == []


@pytest.mark.parametrize(
    ("check", "statement"),
    [
        ("text", "UPDATE config SET text = text || ' x=1'"),
        ("text", "UPDATE problem SET text = 'mm'"),
        ("text", "UPDATE problem SET text = 7"),
        ("text", "UPDATE problem SET m = 1"),
        ("text", "UPDATE problem SET family = 1"),
        ("text", "UPDATE device SET figures = '{\"l2_bytes\": \"big\"}'"),
        ("text", "UPDATE run SET provenance = '[]'"),
        ("text", "UPDATE run SET text = 'another'"),
        ("measurement", "UPDATE measurement SET median_us = median_us * 1.001 WHERE aten_us = 10"),
        ("measurement", "UPDATE measurement SET status = 'wrong'"),
        ("measurement", "UPDATE measurement SET config = 1"),
        ("measurement", "UPDATE measurement SET id = id + 1"),
        ("digest", "DELETE FROM measurement WHERE median_us = 5"),
        ("digest", "UPDATE meta SET value = printf('%032d', 0) WHERE name = 'rows_digest'"),
        ("digest", "UPDATE meta SET value = printf('%032d', 0) WHERE name = 'digest'"),
        ("verdict", "UPDATE verdict SET ratio = 0.4"),
        ("verdict", "UPDATE verdict SET pick = (SELECT id FROM config WHERE text = 'aten:default')"),
        ("verdict", "UPDATE verdict SET klass = 'cuda12'"),
        ("verdict", "UPDATE verdict SET head = head || '0'"),
        ("verdict", "UPDATE verdict SET problem = x'00' WHERE problem = (SELECT max(id) FROM problem)"),
        ("verdict", "UPDATE verdict SET device = 'abc' WHERE problem = (SELECT max(id) FROM problem)"),
        ("verdict", "UPDATE verdict SET protocol = 'abc' WHERE problem = (SELECT max(id) FROM problem)"),
        ("verdict", "UPDATE verdict SET klass = x'ff' WHERE problem = (SELECT max(id) FROM problem)"),
        ("verdict", "UPDATE verdict SET klass = hex(zeroblob(100000)) || char(10)"),
        ("verdict", "DELETE FROM verdict"),
        ("verdict", "INSERT INTO verdict SELECT 1, device, protocol, klass, pick, keys, ratio, spread, aten_us,"
                    " runs, head FROM verdict LIMIT 1"),
    ],
)  # fmt: skip
def test_a_changed_value_is_found(path, check, statement):
    edit(path, statement)
    findings = verify(path)
    assert check in {finding.check for finding in findings}
    assert all("\n" not in finding.message and len(finding.message) < 1000 for finding in findings)


def test_problems_that_await_their_verdicts_are_named_and_no_fault_besides(kit, path):
    with Store.open(path) as store:
        store.add([kit.row(run="run-2")])
    assert [finding.check for finding in verify(path)] == ["pending"]


@pytest.mark.parametrize("packed", [False, True])
def test_impossible_times_are_counted_with_an_example_and_the_remedy(kit, tmp_path, packed):
    """Of an H200: 4096 x 4096 x 4096 in a microsecond, and two problems that are only fast."""
    large = Problem.gemm("mm", m=4096, n=4096, k=4096)
    given = {"device": kit.other, "protocol": Protocol("graph", "cold", 20, 30), "aten": 200.0}
    tile = Config.of("triton", "inductor_mm", block_m=64, block_n=64, block_k=64, group_m=8, warps=4, stages=3)
    rows = [
        kit.row(config, us, problem=large.resized(m, 4096, 4096), **given)
        for m, fast in ((4096, 1.0), (2048, 100.0), (1024, 80.0))
        for config, us in ((ATEN, 200.0), (tile, fast))
    ]
    path = kit.write(tmp_path / "t.db", rows)
    if packed:
        pack(path, tmp_path / "small.db")
    (finding,) = verify(tmp_path / "small.db" if packed else path)
    assert finding.check == "time"
    assert re.match(
        r"1 time is impossible, for example 1 us for mm m=4096 n=4096 k=4096 on NVIDIA H200, where the minimum is"
        r" 34\.7 us; lookups leave it out: build",
        finding.message,
    )


def test_damaged_pages_are_found(path):
    whole = bytearray(path.read_bytes())
    whole[4096 * 5 : 4096 * 5 + 200] = b"\xff" * 200
    path.write_bytes(whole)
    assert {finding.check for finding in verify(path)} == {"integrity"}


def test_what_is_no_table_is_a_table_error(tmp_path):
    (tmp_path / "x.db").write_text("no table " * 100)
    with pytest.raises(TableError, match="not a SQLite file"):
        verify(tmp_path / "x.db")


def test_the_manifest_describes_each_file(path, tmp_path):
    listed = json.loads(write_manifest(tmp_path).read_text())
    (entry,) = listed["tables"]
    assert (entry["file"], entry["bytes"]) == ("t.db", path.stat().st_size)
    assert entry["devices"][0]["problems"] == {"mm": 3}


def test_the_documented_format_is_the_schema():
    text = (Path(__file__).parents[3] / "docs" / "contributing" / "table-format.md").read_text()
    assert schema.VERDICT_SQL.split() == re.search(r"```sql\n(.*?)\n```", text, re.S)[1].split()
    for name, statement in schema.SCHEMA.items():
        assert f"`{name}`" in text or f"`{name} (" in text, name
        for column in re.findall(r"[(,] ?([a-z0-9_]+) (?:TEXT|INTEGER|REAL|BLOB)", statement):
            assert re.search(rf"`{name}`.*\b{column}\b", text), f"{name}.{column}"
    for status in Status:
        assert f"`{status}`" in text
    limits = re.findall(r"^\| ([\d,]+) \|", text.partition("## Reading")[2], re.MULTILINE)
    assert sorted(limits) == sorted(f"{value:,}" for name, value in vars(schema).items() if name.startswith("MOST_"))
