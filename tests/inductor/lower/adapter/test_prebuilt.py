"""Inductor loads a kernel that is compiled in advance: through its own cache of compiled sources, without nvcc."""

import ctypes
import logging
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kit import kernels
from kit.for_a_gpu import CUTLASS
from torch._inductor import config as inductor_config
from torch._inductor.codecache import CUDACodeCache, binary_error_path
from torch._inductor.codegen.cuda import compile_utils

from gemmdb import Problem
from gemmdb.inductor.decide import legality
from gemmdb.inductor.entry import install
from gemmdb.inductor.lower.adapter import patches, prebuilt_kernels
from gemmdb.kernels.cutlass import prebuilt
from gemmdb.kernels.cutlass.archive import KINDS
from gemmdb.key.toolchain import Toolchain


@pytest.fixture
def inductor(tmp_path, monkeypatch):
    """Inductor with an empty cache and no nvcc, torch for CUDA 13, and gemmdb's wrappers."""
    monkeypatch.setattr(prebuilt_kernels, "running", lambda: Toolchain(torch="2.13.0", cuda="13.0"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compile_utils, "_cuda_compiler", lambda: str(tmp_path / "no-nvcc"))
    CUDACodeCache.write.cache_clear()
    CUDACodeCache.cache_clear()
    install.install()
    with inductor_config.patch({"cuda.arch": "90", "cutlass.cutlass_hash_with_compile_cmd": False}):
        yield
    patches.undo()
    CUDACodeCache.cache_clear()
    prebuilt.archive.cache_clear()


def test_a_graph_loads_the_library_of_the_archive(tmp_path, monkeypatch, inductor):
    kernels.ship(monkeypatch, kernels.compiled(tmp_path))
    library, _, _ = CUDACodeCache.load(kernels.SOURCE, "so")
    assert ctypes.CDLL(library.lib_path)[kernels.NAME](41) == 42
    with pytest.raises(RuntimeError):  # Inductor's own: what a kernel returns is an error.
        getattr(library, kernels.NAME)(41)


def test_what_nvcc_said_before_does_not_count(tmp_path, monkeypatch, inductor):
    _, source = CUDACodeCache.write(kernels.SOURCE, "so")
    for kind in KINDS:
        error = binary_error_path(str(Path(source).with_suffix(f".{kind}")))
        Path(error).write_text('[["nvcc"], "it failed"]')
    kernels.ship(monkeypatch, kernels.compiled(tmp_path))
    assert CUDACodeCache.load(kernels.SOURCE, "so")


def test_a_cache_that_was_emptied_is_filled_again(tmp_path, monkeypatch, inductor):
    kernels.ship(monkeypatch, kernels.compiled(tmp_path))
    for _ in range(2):
        path, _, _ = CUDACodeCache.compile(kernels.SOURCE, "so")
        assert Path(path).exists()
        CUDACodeCache.cache_clear()
        shutil.rmtree(Path(path).parents[1])


def test_a_package_links_the_object_of_the_archive(tmp_path, monkeypatch, inductor):
    kernels.ship(monkeypatch, kernels.compiled(tmp_path))
    path, _, _ = CUDACodeCache.compile(kernels.SOURCE, "o")
    assert Path(path).read_bytes() == prebuilt.archive().read(kernels.NAME)["o"]


def test_another_source_is_left_to_nvcc(tmp_path, monkeypatch, inductor):
    kernels.ship(monkeypatch, kernels.archived(tmp_path))
    with pytest.raises(OSError, match=r"no-nvcc|CUDA_HOME"):
        CUDACodeCache.compile(kernels.SOURCE.replace("ab" * 12, "cd" * 12), "o")


def test_an_archive_for_another_cuda_is_left_to_nvcc(tmp_path, monkeypatch, inductor):
    monkeypatch.setattr(prebuilt_kernels, "running", lambda: Toolchain(torch="2.13.0", cuda="12.8"))
    kernels.ship(monkeypatch, kernels.archived(tmp_path))
    with pytest.raises(OSError, match=r"no-nvcc|CUDA_HOME"):
        CUDACodeCache.compile(kernels.SOURCE, "o")


def test_a_damaged_kernel_is_left_to_nvcc_with_a_warning(tmp_path, monkeypatch, inductor, caplog):
    path = kernels.archived(tmp_path)
    kernels.ship(monkeypatch, path)
    prebuilt.archive()
    path.write_bytes(b"")
    with caplog.at_level(logging.WARNING), pytest.raises(OSError, match=r"no-nvcc|CUDA_HOME"):
        CUDACodeCache.compile(kernels.SOURCE, "o")
    assert "skipping a prebuilt kernel" in caplog.text


@pytest.mark.parametrize(("running", "made", "usable"), [
    ("13.0", kernels.compiled, True), ("12.8", kernels.compiled, False), ("13.0", kernels.archived, False),
])  # fmt: skip
def test_a_kernel_is_usable_if_this_process_can_load_it(tmp_path, monkeypatch, running, made, usable):
    monkeypatch.setattr(prebuilt_kernels, "running", lambda: Toolchain(torch="2.13.0", cuda=running))
    kernels.ship(monkeypatch, made(tmp_path))
    assert prebuilt_kernels.usable(kernels.NAME) is usable
    assert not prebuilt_kernels.usable(f"gemmdb_cutlass_{'0' * 24}")
    prebuilt.archive.cache_clear()


@pytest.mark.parametrize(
    ("running", "refusal"), [("13.0", "its compiled kernel cannot be loaded here"), ("12.8", None)]
)
def test_a_kernel_that_does_not_load_is_refused_and_one_of_another_cuda_is_nvccs(
    tmp_path, monkeypatch, running, refusal
):
    monkeypatch.setattr(prebuilt_kernels, "running", lambda: Toolchain(torch="2.13.0", cuda=running))
    problem = Problem.gemm("int_mm", m=512, n=256, k=512)
    kernels.ship(monkeypatch, kernels.archived(tmp_path, [prebuilt.name(CUTLASS, problem)]))
    found = legality.lowering_rejection(CUTLASS, problem)
    prebuilt.archive.cache_clear()
    assert (found and found.reason) == refusal
