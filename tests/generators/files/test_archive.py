"""Archives of rows: what is written is read back to the last bit, from any number of parts, and nothing else is."""

from __future__ import annotations

import lzma
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemmdb import InputError
from gemmdb.generators.files import archive
from gemmdb.generators.files.verify import verify
from gemmdb.table.writer import Store


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_table_comes_back_from_its_archive(kit, data):
    rows, most = data.draw(kit.rows()), data.draw(st.integers(1, 8))
    with tempfile.TemporaryDirectory() as name:
        path, again = Path(name, "a.db"), Path(name, "b.db")
        kit.write(path, rows)
        parts = archive.write(path, Path(name, "parts"), most)
        assert archive.restore(parts, again) == len(set(rows))
        assert archive.restore(parts, again) == 0
        with Store.open(again) as store:
            store.refresh()
        assert kit.content(again) == kit.content(path)
        assert verify(again) == []


def test_parts_are_bounded_and_readable_by_themselves(kit, tmp_path):
    rows = [kit.row(problem=problem, run=f"run-{i}") for problem in kit.problems for i in range(4)]
    with Store.open(kit.write(tmp_path / "a.db", rows)) as store:
        store.add_runs([{"run": "run-0", "command": "build"}])
    parts = archive.write(tmp_path / "a.db", tmp_path / "parts", 5)
    assert [path.name for path in parts] == ["rows-00.jsonl.xz", "rows-01.jsonl.xz"]
    found = [list(archive.read(path)) for path in parts]
    assert [len(part) for part in found] == [8, 4]
    assert {row for part in found for row in part} == set(rows)
    assert {"run": "run-0", "command": "build"} in archive.runs(parts[1])
    assert found[1][0].device.figures == kit.device.figures


def test_an_empty_table_has_no_parts(kit, tmp_path):
    assert archive.write(kit.write(tmp_path / "a.db", []), tmp_path / "parts") == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace('"archive":1', '"archive":2'), "another version"),
        (lambda text: text.replace('{"archive"', '["archive"'), "not an archive"),
        (lambda text: text.replace('"cpp:packed_gemm', '"cpp:../../packed_gemm'), ":2: malformed rows"),
        (lambda text: text.replace('"config":[0,1]', '"config":[0,7]'), ":2: malformed rows"),
        (lambda text: text.replace('"config":[0,1]', '"config":[0,-1]'), ":2: malformed rows"),
        (lambda text: text.replace('"config":[0,1]', '"config":[0]'), ":2: malformed rows"),
        (lambda text: text.replace('"status":["ok","ok"]', '"status":["ok","fast"]'), ":2: malformed rows"),
        (lambda text: text.replace("10.0,5.0", '10.0,"5.0"'), ":2: malformed rows"),
        (lambda text: text.replace('{"copy_gb_per_s":20.5}', "7"), ":1: malformed devices|device's figures"),
    ],
)
def test_what_no_archive_holds_is_refused(kit, tmp_path, change, message):
    kit.write(tmp_path / "a.db", [kit.row(), kit.row(kit.configs[1], 5.0)])
    (part,) = archive.write(tmp_path / "a.db", tmp_path / "parts")
    text = lzma.decompress(part.read_bytes()).decode()
    assert change(text) != text
    part.write_bytes(lzma.compress(change(text).encode()))
    with pytest.raises(InputError, match=message):
        archive.restore([part], tmp_path / "b.db")


def test_a_file_that_is_cut_off_is_refused(kit, tmp_path):
    kit.write(tmp_path / "a.db", [kit.row()])
    (part,) = archive.write(tmp_path / "a.db", tmp_path / "parts")
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(InputError, match="cannot be read"):
        list(archive.read(part))
