"""Kernels that are compiled in advance: what an archive holds, what it is trusted with, and who is served from it."""

import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import kernels
from kit.devices import H200

from gemmdb.errors import TableError
from gemmdb.generators.files.verify import verify_kernels
from gemmdb.kernels import cutlass
from gemmdb.kernels.config import Config
from gemmdb.kernels.cutlass import entry, prebuilt
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import Toolchain
from gemmdb.ladder.ask import Ask
from gemmdb.ladder.policy_filter import objection
from gemmdb.settings import Policy

TILE: dict[str, str | int] = {
    "tile_m": 32, "tile_n": 128, "tile_k": 64, "cluster_m": 1, "cluster_n": 1, "schedule": "cooperative", "split_k": 1,
    "swizzle": 1, "raster": "auto", "swap": 1,
}  # fmt: skip
CONFIG = Config.of("cutlass", "gemm", **TILE)
PROBLEM = Problem.gemm("int_mm", m=32, n=512, k=512, fusion="scale")
CUDA13 = Toolchain(torch="2.13.0", triton="3.7.0", cuda="13.0")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    prebuilt.archive.cache_clear()
    yield
    prebuilt.archive.cache_clear()


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    path = kernels.archived(tmp_path, [prebuilt.name(CONFIG, PROBLEM), kernels.NAME])
    kernels.ship(monkeypatch, path)
    return path


def test_an_archive_holds_each_kernel_as_an_object_and_as_a_library(tmp_path):
    archive = prebuilt.Archive.open(kernels.archived(tmp_path))
    assert {kind: archive.read(kernels.NAME, kind).decode() for kind in prebuilt.KINDS} == {
        kind: f"{kind} of {kernels.NAME}" for kind in ("o", "so")
    }
    assert archive.provenance["source"] == cutlass.digest("gemm")
    assert verify_kernels(archive.path) == []


def test_the_same_kernels_give_the_same_bytes(tmp_path):
    first = kernels.archived(tmp_path, ["gemmdb_cutlass_" + "b" * 24, kernels.NAME]).read_bytes()
    assert kernels.archived(tmp_path, [kernels.NAME, "gemmdb_cutlass_" + "b" * 24]).read_bytes() == first


def rewritten(path, change):
    """The archive with other members."""
    with zipfile.ZipFile(path) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as made:
        for name, data in members.items():
            made.writestr(name, data)
    return path


def test_a_kernel_that_was_changed_is_not_read(tmp_path):
    path = rewritten(kernels.archived(tmp_path), lambda members: members.update({kernels.NAME: b"x" * 90}))
    archive = prebuilt.Archive.open(path)
    with pytest.raises(TableError, match=r"is not what index.json says"):
        archive.read(kernels.NAME, "so")
    assert [finding.check for finding in verify_kernels(path)] == ["kernel", "kernel"]


def test_an_archive_of_another_source_is_a_fault(tmp_path, monkeypatch):
    path = kernels.archived(tmp_path)
    monkeypatch.setattr(cutlass, "digest", lambda kernel: "0" * 16)
    assert [finding.message for finding in verify_kernels(path)] == [
        f"compiled from source {prebuilt.Archive.open(path).provenance['source']}, which is {'0' * 16} now: "
        "gemmdb kernels build"
    ]


@pytest.mark.parametrize("index", [
    b"", b"[]", b"{}", b'{"kernels": {}, "provenance": {}}', b'{"kernels": [], "provenance": {"cuda": "13.0"}}',
    b'{"kernels": {"../x": {"o": "", "so": "", "size": 1}}, "provenance": {"cuda": "13.0"}}',
    json.dumps({"kernels": {kernels.NAME: {"o": "", "so": "", "size": "x"}}, "provenance": {"cuda": "13.0"}}).encode(),
    json.dumps({"kernels": {kernels.NAME: {"o": "", "so": "", "size": 1}}, "provenance": {"cuda": 13}}).encode(),
    json.dumps({"kernels": {kernels.NAME: {"o": "", "so": "", "size": 1e999}}, "provenance": {"cuda": "13"}}).encode(),
    b"[" * 100_000,
])  # fmt: skip
def test_a_malformed_index_is_an_error_of_one_line(tmp_path, monkeypatch, index):
    path = rewritten(kernels.archived(tmp_path), lambda members: members.update({prebuilt.INDEX: index}))
    with pytest.raises(TableError) as raised:
        prebuilt.Archive.open(path)
    assert "\n" not in str(raised.value)
    kernels.ship(monkeypatch, path)
    assert prebuilt.cost(CONFIG, PROBLEM, CUDA13) == CONFIG.spec.cost, "it counts as none"


@given(data=st.binary(max_size=300))
def test_bytes_that_are_no_archive_are_an_error(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("archive") / "kernels.zip"
    path.write_bytes(data)
    with pytest.raises(TableError):
        prebuilt.Archive.open(path)


@given(cut=st.integers(0, 500), flipped=st.integers(0, 499))
def test_a_damaged_archive_is_an_error_or_reads_what_was_written(tmp_path_factory, cut, flipped):
    folder = tmp_path_factory.mktemp("archive")
    path = kernels.archived(folder)
    data = bytearray(path.read_bytes())
    data[flipped % len(data)] ^= 0x55
    path.write_bytes(data[: len(data) - cut % len(data)] if cut % 2 else data)
    try:
        archive = prebuilt.Archive.open(path)
        found = {name: archive.read(name, "so") for name in archive.digests}
    except TableError:
        return
    assert found in ({kernels.NAME: f"so of {kernels.NAME}".encode()}, {})


def test_a_member_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
    path = rewritten(kernels.archived(tmp_path), lambda members: members.update({kernels.NAME: b"\0" * 2048}))
    monkeypatch.setattr(prebuilt, "_MOST_BYTES", 1024)
    with pytest.raises(TableError, match="too large"):
        prebuilt.Archive.open(path).read(kernels.NAME, "so")


@pytest.mark.parametrize(("toolchain", "cost"), [
    (CUDA13, prebuilt.LOADING), (replace(CUDA13, cuda="13.4"), prebuilt.LOADING), (None, prebuilt.LOADING),
    (replace(CUDA13, cuda="12.8"), CONFIG.spec.cost), (replace(CUDA13, cuda=""), CONFIG.spec.cost),
])  # fmt: skip
def test_a_kernel_that_is_there_costs_what_loading_costs(shipped, toolchain, cost):
    assert prebuilt.cost(CONFIG, PROBLEM, toolchain) == cost


def test_a_kernel_that_is_not_there_has_to_be_compiled(shipped):
    other = Config.of("cutlass", "gemm", **{**TILE, "tile_m": 64})
    assert prebuilt.cost(other, PROBLEM, CUDA13) == other.spec.cost
    assert prebuilt.cost(CONFIG, replace(PROBLEM, fusion="none", out="int32"), CUDA13) == CONFIG.spec.cost


def test_splits_and_the_order_of_tiles_are_arguments_of_one_kernel(shipped):
    turned = Config.of("cutlass", "gemm", **{**TILE, "swizzle": 8, "raster": "n"})
    assert prebuilt.cost(turned, PROBLEM, CUDA13) == prebuilt.LOADING
    assert prebuilt.name(turned, PROBLEM) == prebuilt.name(CONFIG, PROBLEM.resized(1024, 4096, 4096))


VECTORS = st.builds(cutlass.Vectors, *(st.sampled_from(("", "fp32", "bf16")) for _ in range(3)))


@given(first=VECTORS, second=VECTORS)
def test_two_kernels_have_one_name_only_if_they_are_one_text(first, second):
    units = [prebuilt.unit(cutlass.macros(CONFIG, PROBLEM, one)) for one in (first, second)]
    texts = [unit.source.replace(unit.name, "") for unit in units]
    assert (units[0].name == units[1].name) == (texts[0] == texts[1])


def test_operands_in_one_buffer_make_another_function():
    apart = entry.apart("", ("a", "b"))
    shared = entry.unit("", {"a": "a", "b": "a", "out": "out"})
    assert apart.name != shared.name
    assert "void const* a, void const* b, void* out" in apart.signature
    assert "void const* a, void* out" in shared.signature
    assert "const int a_offset, const int b_offset, const int out_offset" in shared.signature


def test_the_identity_changes_with_what_is_shipped(tmp_path, monkeypatch):
    kernels.ship(monkeypatch, tmp_path / "none.zip")
    assert prebuilt.identity() == ""
    kernels.ship(monkeypatch, kernels.archived(tmp_path))
    first = prebuilt.identity()
    kernels.ship(monkeypatch, kernels.archived(tmp_path, ["gemmdb_cutlass_" + "c" * 24]))
    assert "" != prebuilt.identity() != first != ""


def test_an_h200_is_a_gpu_that_the_archive_is_for():
    assert H200.arch == prebuilt.ARCH


def test_another_way_of_packing_is_refused(tmp_path):
    path = kernels.archived(tmp_path)
    with zipfile.ZipFile(path) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data in members.items():
            made.writestr(name, data)
    with pytest.raises(TableError, match="not packed as gemmdb packs it"):
        prebuilt.Archive.open(path)


def test_a_verdict_that_no_kernel_can_serve_is_no_error(shipped, tmp_path):
    """What a kernel costs is asked of legal configs alone: no macros are made for fp64."""
    problem = Problem.gemm("mm", m=32, n=512, k=512, dtype="fp64")
    ask = Ask(Query(problem, H200), (), Policy(), CUDA13)
    assert "16-bit floats" in objection(ask, CONFIG)
