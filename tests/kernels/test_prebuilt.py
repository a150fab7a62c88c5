"""Kernels that are compiled in advance: what they are called, and who is served from them."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import kernels
from kit.devices import H200

from gemmdb.kernels import cutlass
from gemmdb.kernels.config import Config
from gemmdb.kernels.cutlass import entry, prebuilt
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import Toolchain
from gemmdb.lookup.ask import Ask
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


def test_a_verdict_that_no_kernel_can_serve_is_no_error(shipped, tmp_path):
    """What a kernel costs is asked of legal configs alone: no macros are made for fp64."""
    problem = Problem.gemm("mm", m=32, n=512, k=512, dtype="fp64")
    ask = Ask(Query(problem, H200), (), Policy(), CUDA13)
    assert "16-bit floats" in ask.rejection(CONFIG).reason
