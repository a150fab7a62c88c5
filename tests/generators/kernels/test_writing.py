"""How an archive of kernels is written: in blocks of what is alike, the same bytes each time."""

import os
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import kernels

from gemmdb.errors import InputError
from gemmdb.generators.kernels import writing
from gemmdb.kernels.cutlass.archive import INDEX, MAX_BYTES, Archive


def name(number: int) -> str:
    return f"gemmdb_cutlass_{number:024x}"


def files(folder: Path, *made: tuple[bytes, bytes]) -> dict[str, dict[str, Path]]:
    """The files of kernels with these objects and libraries, named by their numbers."""
    found = {}
    for number, parts in enumerate(made):
        found[name(number)] = {kind: folder / f"{name(number)}.{kind}" for kind in ("o", "so")}
        for path, data in zip(found[name(number)].values(), parts, strict=True):
            path.write_bytes(data)
    return found


def test_the_same_kernels_give_the_same_bytes(tmp_path):
    first = kernels.archived(tmp_path, [name(1), kernels.NAME]).read_bytes()
    assert kernels.archived(tmp_path, [kernels.NAME, name(1)]).read_bytes() == first


@given(made=st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=40)), min_size=1, max_size=6))
def test_what_is_written_is_read(tmp_path_factory, made):
    folder = tmp_path_factory.mktemp("archive")
    archive = Archive.open(kernels.written(files(folder, *made), folder, kernels.TOOLS))
    assert [tuple(archive.read(name(number)).values()) for number in range(len(made))] == made
    assert len(archive.kernels) == len(made)


def test_kernels_of_about_one_size_lie_in_one_block(tmp_path):
    third = MAX_BYTES // 3
    made = [(bytes([number]) * size, b"so") for number, size in enumerate((third, 10, third - 9, 20, third - 8, 30))]
    path = kernels.written(files(tmp_path, *made), tmp_path, kernels.TOOLS)
    archive = Archive.open(path)
    assert [archive.kernels[name(number)].block[8] for number in range(6)] == ["1", "0", "0", "0", "0", "0"]
    assert [tuple(archive.read(name(number)).values()) for number in range(6)] == made
    with zipfile.ZipFile(path) as opened:
        assert opened.namelist() == [INDEX, "kernels-0.xz", "kernels-1.xz"]


def test_kernels_that_are_alike_take_little_more_than_one(tmp_path):
    code = os.urandom(100_000)
    made = [(code[:number] + b"other" + code[number:], code) for number in range(10)]
    assert kernels.written(files(tmp_path, *made), tmp_path, kernels.TOOLS).stat().st_size < 110_000


def test_a_kernel_fills_a_block_at_most(tmp_path):
    kernels.written(files(tmp_path, (bytes(MAX_BYTES), b"")), tmp_path, kernels.TOOLS)
    with pytest.raises(InputError, match=rf"{name(0)} has 4,194,305 bytes"):
        kernels.written(files(tmp_path, (bytes(MAX_BYTES), b"x")), tmp_path, kernels.TOOLS)


def test_an_archive_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        writing.write(files(tmp_path, (b"o", b"so")), kernels.TOOLS, tmp_path / "nowhere" / "kernels.zip")
