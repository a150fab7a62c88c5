"""CUTLASS kernels that are compiled in advance: which, how a build continues, and how their archive is written."""

import os
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import kernels

from gemmdb.errors import InputError
from gemmdb.generators import cutlass_archive
from gemmdb.generators.cutlass_archive import Tools, _picks, build, compiled, ready, wanted, write
from gemmdb.kernels import cutlass
from gemmdb.kernels.cutlass import entry, prebuilt
from gemmdb.kernels.cutlass.archive import INDEX, MAX_BYTES, Archive
from gemmdb.lookup.environment import current_catalog


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """The file with a line per call of the compiler."""
    return kernels.instead_of_nvcc(tmp_path, monkeypatch)


def units(*texts: str) -> dict[str, entry.Unit]:
    found = [entry.apart(text, ("a", "b")) for text in texts]
    return {unit.name: unit for unit in found}


def test_all_that_verdicts_of_the_shipped_tables_name_are_wanted_the_most_frequent_first(monkeypatch):
    picks = list(_picks(current_catalog()))  # Looked up once.
    monkeypatch.setattr(cutlass_archive, "_picks", lambda catalog: picks)
    found = wanted(current_catalog())
    assert 79 <= len(found) <= 400
    assert all(name == unit.name and name in unit.source for name, unit in found.items())
    first = next(iter(found.values()))
    assert "#define GEMMDB_LEFT int8_t\n" in first.source
    assert {prebuilt.name(config, problem) for config, problem in picks} <= set(found)


def test_a_build_compiles_what_is_not_there_yet(calls):
    tools, told = Tools.find(), []
    first = build(units("one", "two"), tools, 2, lambda *numbers: told.append(numbers))
    assert told == [(1, 2), (2, 2)]
    assert len(calls.read_text().splitlines()) == 4, "an object and a library each"
    both = build(units("one", "two", "three"), tools, 2, lambda *numbers: None)
    assert len(calls.read_text().splitlines()) == 6
    assert set(first) < set(both)
    assert ready(units("three", "four"), tools) == list(units("three"))


def test_a_kernel_names_no_symbol_that_only_a_new_system_has(calls):
    found = build(units("one"), Tools.find(), 1, lambda *numbers: None)
    (paths,) = found.values()
    assert b"ELF" in (data := paths["o"].read_bytes())
    assert b"ios_base_library_init" not in data


def test_other_tools_compile_anew(calls):
    build(units("one"), Tools.find(), 1, lambda *numbers: None)
    compiler = Path(os.environ["CUDACXX"])
    compiler.write_text(compiler.read_text().replace("13.0.88", "13.1.2"))
    assert ready(units("one"), Tools.find()) == []


def test_a_kernel_that_fails_names_the_compilers_error_and_keeps_the_others(calls):
    tools = Tools.find()
    with pytest.raises(InputError, match=r"nvcc ended with 2: kernel.cu\(3\): error: it cannot be"):
        build(units("good", "this cannot be"), tools, 1, lambda *numbers: None)
    assert ready(units("good", "this cannot be"), tools) == list(units("good"))


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(cutlass, "compiler", lambda: None)
    with pytest.raises(InputError, match="nvcc was not found"):
        Tools.find()
    monkeypatch.setattr(cutlass, "compiler", lambda: "nvcc")
    monkeypatch.setattr(cutlass, "headers", lambda: None)
    with pytest.raises(InputError, match=r"gemmdb\[cutlass\]"):
        Tools.find()


@pytest.mark.slow
@pytest.mark.skipif(cutlass.compiler() is None or cutlass.headers() is None, reason="needs nvcc and nvidia-cutlass")
def test_nvcc_compiles_the_first_kernel(tmp_path):
    unit = next(iter(wanted(current_catalog()).values()))
    files = compiled(unit, Tools.find(), tmp_path)
    assert unit.name.encode() in files["so"].read_bytes()
    assert unit.name.encode() in files["o"].read_bytes()


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
    with pytest.raises(InputError, match="nowhere is not a folder"):
        write(files(tmp_path, (b"o", b"so")), kernels.TOOLS, tmp_path / "nowhere" / "kernels.zip")
