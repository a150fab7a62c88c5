"""Which kernels are compiled in advance, and how a build goes on where it was interrupted."""

import os
from pathlib import Path

import pytest
from kit import kernels

from gemmdb.api import current_catalog
from gemmdb.errors import InputError
from gemmdb.generators.kernels import building, wanted
from gemmdb.generators.kernels.compiling import Tools, compiled
from gemmdb.kernels import cutlass
from gemmdb.kernels.cutlass import entry, prebuilt


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """The file with a line per call of the compiler."""
    return kernels.instead_of_nvcc(tmp_path, monkeypatch)


def units(*texts: str) -> dict[str, entry.Unit]:
    found = [entry.apart(text, ("a", "b")) for text in texts]
    return {unit.name: unit for unit in found}


def test_all_that_verdicts_of_the_shipped_tables_name_are_wanted_the_most_frequent_first():
    found = wanted.wanted(current_catalog())
    assert 79 <= len(found) <= 400
    assert all(name == unit.name and name in unit.source for name, unit in found.items())
    first = next(iter(found.values()))
    assert "#define GEMMDB_LEFT int8_t\n" in first.source
    picks = list(wanted._picks(current_catalog()))
    assert {prebuilt.name(config, problem) for config, problem in picks} <= set(found)


def test_a_build_compiles_what_is_not_there_yet(calls):
    tools, told = Tools.find(), []
    first = building.build(units("one", "two"), tools, 2, lambda *numbers: told.append(numbers))
    assert told == [(1, 2), (2, 2)]
    assert len(calls.read_text().splitlines()) == 4, "an object and a library each"
    both = building.build(units("one", "two", "three"), tools, 2, lambda *numbers: None)
    assert len(calls.read_text().splitlines()) == 6
    assert set(first) < set(both)
    assert building.ready(units("three", "four"), tools) == list(units("three"))


def test_other_tools_compile_anew(calls):
    building.build(units("one"), Tools.find(), 1, lambda *numbers: None)
    compiler = Path(os.environ["CUDACXX"])
    compiler.write_text(compiler.read_text().replace("13.0.88", "13.1.2"))
    assert building.ready(units("one"), Tools.find()) == []


def test_a_kernel_that_fails_names_the_compilers_error_and_keeps_the_others(calls):
    tools = Tools.find()
    with pytest.raises(InputError, match=r"nvcc ended with 2: kernel.cu\(3\): error: it cannot be"):
        building.build(units("good", "this cannot be"), tools, 1, lambda *numbers: None)
    assert building.ready(units("good", "this cannot be"), tools) == list(units("good"))


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(cutlass, "compiler", lambda: None)
    with pytest.raises(InputError, match="nvcc is not there"):
        Tools.find()
    monkeypatch.setattr(cutlass, "compiler", lambda: "nvcc")
    monkeypatch.setattr(cutlass, "headers", lambda: None)
    with pytest.raises(InputError, match=r"gemmdb\[cutlass\]"):
        Tools.find()


@pytest.mark.slow
@pytest.mark.skipif(cutlass.compiler() is None or cutlass.headers() is None, reason="needs nvcc and nvidia-cutlass")
def test_nvcc_compiles_the_first_kernel(tmp_path):
    unit = next(iter(wanted.wanted(current_catalog()).values()))
    files = compiled(unit, Tools.find(), tmp_path)
    assert unit.name.encode() in files["so"].read_bytes()
    assert unit.name.encode() in files["o"].read_bytes()
