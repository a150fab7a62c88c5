"""An archive of kernels: what it holds, and what a damaged, foreign or hostile one cannot do."""

import json
import lzma
import os
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import kernels

from gemmdb.errors import TableError
from gemmdb.generators.files.verify import verify_kernels
from gemmdb.kernels import cutlass
from gemmdb.kernels.cutlass import prebuilt
from gemmdb.kernels.cutlass.archive import INDEX, MAX_BYTES, Archive

BLOCK = "kernels-0.xz"
PLACE = {"block": BLOCK, "offset": 0, "sizes": {"o": 1, "so": 1}, "sha256": ""}


def rewritten(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    """The archive with other members in place of its own."""
    with zipfile.ZipFile(path) as opened:
        members = {name: opened.read(name) for name in opened.namelist()} | members
    with zipfile.ZipFile(path, "w", method) as made:
        for name, data in members.items():
            made.writestr(name, data)
    return path


def index(name: str = kernels.NAME, cuda: object = "13.0", **told: object) -> bytes:
    """An index with one kernel."""
    document = {"provenance": {"cuda": cuda}, "kernels": {name: PLACE | told}}
    return packed(json.dumps(document).encode())


def packed(data: bytes) -> bytes:
    return lzma.compress(data, preset=0)  # Its dictionary is small.


def test_an_archive_holds_each_kernel_as_an_object_and_as_a_library(tmp_path):
    archive = Archive.open(kernels.archived(tmp_path))
    assert archive.read(kernels.NAME) == {kind: f"{kind} of {kernels.NAME}".encode() for kind in ("o", "so")}
    assert archive.provenance["source"] == cutlass.sources()
    assert verify_kernels(archive.path) == []


def test_a_kernel_that_was_changed_is_not_read(tmp_path):
    path = rewritten(kernels.archived(tmp_path), {BLOCK: packed(b"x" * 200)})
    archive = Archive.open(path)
    with pytest.raises(TableError, match=rf"{kernels.NAME} is not what index.json.xz says"):
        archive.read(kernels.NAME)
    assert [finding.check for finding in verify_kernels(path)] == ["kernel"]


def test_a_block_that_ends_early_or_is_missing_is_an_error(tmp_path):
    path = rewritten(kernels.archived(tmp_path), {BLOCK: packed(b"o")})
    with pytest.raises(TableError, match="is not what"):
        Archive.open(path).read(kernels.NAME)
    rewritten(path, {INDEX: index(block="kernels-9.xz")})
    with pytest.raises(TableError, match=r"has no kernels-9.xz"):
        Archive.open(path).read(kernels.NAME)


def test_an_archive_of_another_source_is_a_fault(tmp_path, monkeypatch):
    path = kernels.archived(tmp_path)
    monkeypatch.setattr(cutlass, "digest", lambda kernel: "0" * 16)
    was, now = Archive.open(path).provenance["source"], " ".join(["0" * 16] * 4)
    assert [finding.message for finding in verify_kernels(path)] == [
        f"compiled from source {was}, which is {now} now: gemmdb kernels build"
    ]


def test_an_archive_of_an_older_gemmdb_is_refused_with_the_remedy(tmp_path):
    """It had a member for each kernel, and the index in another."""
    path = tmp_path / "kernels-sm90.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as made:
        made.writestr("index.json", "{}")
        made.writestr(kernels.NAME, b"object and library")
    with pytest.raises(TableError, match=r"another version of gemmdb made it.*gemmdb kernels build") as raised:
        Archive.open(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("told", [
    b"", b"[]", b"{}", b'{"kernels": {}, "provenance": {}}', b'{"kernels": [], "provenance": {"cuda": "13.0"}}',
    b"[" * 100_000, b'{"kernels": {"%s": 1}, "provenance": {"cuda": "13.0"}}' % kernels.NAME.encode(),
])  # fmt: skip
def test_a_malformed_index_is_an_error_of_one_line(tmp_path, monkeypatch, told):
    refused(rewritten(kernels.archived(tmp_path), {INDEX: packed(told)}), monkeypatch)


@pytest.mark.parametrize("told", [
    {"name": "../x"}, {"cuda": 13}, {"offset": -1}, {"offset": MAX_BYTES}, {"offset": 1e999}, {"offset": "x"},
    {"sizes": {"o": -1, "so": 2}}, {"sizes": {"o": MAX_BYTES, "so": 1}}, {"sizes": {"o": 1}}, {"sizes": 1},
    {"block": "index.json.xz"}, {"block": "kernels-1.xz\n"}, {"block": 0},
])  # fmt: skip
def test_a_kernel_outside_of_any_block_is_an_error_of_one_line(tmp_path, monkeypatch, told):
    refused(rewritten(kernels.archived(tmp_path), {INDEX: index(**told)}), monkeypatch)


def refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TableError) as raised:
        Archive.open(path)
    assert "\n" not in str(raised.value)
    kernels.ship(monkeypatch, path)
    assert prebuilt.archive() is None, "it counts as none"
    prebuilt.archive.cache_clear()


@given(data=st.binary(max_size=300))
def test_bytes_that_are_no_archive_are_an_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("archive") / "kernels.zip"
    path.write_bytes(data)
    with pytest.raises(TableError):
        Archive.open(path)


@given(cut=st.integers(0, 1500), flipped=st.integers(0, 1500))
def test_a_damaged_archive_is_an_error_or_reads_what_was_written(tmp_path_factory, cut, flipped):
    path = kernels.archived(tmp_path_factory.mktemp("archive"))
    data = bytearray(path.read_bytes())
    data[flipped % len(data)] ^= 0x55
    path.write_bytes(data[: len(data) - cut % len(data)] if cut % 2 else data)
    try:
        archive = Archive.open(path)
        found = {name: archive.read(name)["so"] for name in archive.kernels}
    except TableError:
        return
    assert found in ({kernels.NAME: f"so of {kernels.NAME}".encode()}, {})


@contextmanager
def within(most: int) -> Iterator[None]:
    """What runs inside holds at most that many bytes at once."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] <= most
    finally:
        tracemalloc.stop()


def test_a_block_is_decompressed_as_far_as_the_kernel_reaches(tmp_path):
    """What follows may be more than the memory holds."""
    path = rewritten(kernels.archived(tmp_path), {BLOCK: packed(bytes(64 << 20))})
    with within(2 << 20), pytest.raises(TableError, match="is not what"):
        Archive.open(path).read(kernels.NAME)


def test_an_index_that_would_fill_the_memory_is_refused(tmp_path):
    path = rewritten(kernels.archived(tmp_path), {INDEX: packed(bytes(64 << 20))})
    with within(8 * MAX_BYTES), pytest.raises(TableError, match="malformed"):
        Archive.open(path)


def test_a_dictionary_that_would_fill_the_memory_is_refused(tmp_path):
    path = rewritten(kernels.archived(tmp_path), {BLOCK: lzma.compress(b"x" * 200, preset=9)})
    with pytest.raises(TableError, match=r"[Mm]emory"):
        Archive.open(path).read(kernels.NAME)


def test_a_member_larger_than_any_block_is_refused(tmp_path):
    path = rewritten(kernels.archived(tmp_path), {BLOCK: os.urandom(MAX_BYTES + 1)})
    with within(2 << 20), pytest.raises(TableError, match="too large"):
        Archive.open(path).read(kernels.NAME)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_another_compression_is_refused(tmp_path, method):
    path = rewritten(kernels.archived(tmp_path), {}, method)
    with pytest.raises(TableError, match="not packed as gemmdb packs it"):
        Archive.open(path)


def far(about: zipfile.ZipInfo) -> None:
    about.header_offset = 2**64 - 1


def shorter(about: zipfile.ZipInfo) -> None:
    about.file_size = 1


def longer(about: zipfile.ZipInfo) -> None:
    about.compress_size = about.file_size = 2**40


def encrypted(about: zipfile.ZipInfo) -> None:
    about.flag_bits |= 1


@pytest.mark.parametrize("lie", [far, shorter, longer, encrypted])
def test_a_directory_that_lies_is_an_error(tmp_path, lie: Callable[[zipfile.ZipInfo], None]):
    path = kernels.archived(tmp_path)
    with zipfile.ZipFile(path, "a") as made:
        made.writestr("last", b"so that the directory is written anew")
        lie(made.getinfo(INDEX))
    with pytest.raises(TableError):
        Archive.open(path)
