"""How vLLM is called, with a package in its place that has its functions' names, files and loaders but no GPU kernels.

tests/gpu/test_vllm.py runs vLLM itself.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gemmdb.errors import GemmdbError, InputError
from gemmdb.generators import vllm_files
from gemmdb.generators.vllm import kernels, operands
from gemmdb.generators.vllm.layers import Experts, Linear
from gemmdb.generators.vllm_files import Tile

CPU = torch.device("cpu")
LAYER = Experts(4, 2, 128, 256)
TILE, OTHER = Tile(16, 64, 128, 1, 4, 4), Tile(64, 128, 64, 16, 8, 3)
FUSED = """
import functools, json, os, pathlib, torch
used = []

@functools.lru_cache
def get_moe_configs(E, N, dtype, block_n=None, block_k=None):
    folder = os.environ.get("VLLM_TUNED_CONFIG_FOLDER")
    path = pathlib.Path(folder or "none", f"E={E},N={N},device_name=NVIDIA_H200.json")
    return {int(m): one for m, one in json.loads(path.read_text()).items()} if path.exists() else None

def get_default_config(M, E, N, K, topk, dtype, block_shape=None):
    return {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "SPLIT_K": 1, "num_stages": 2}

def try_get_optimal_moe_config(w1_shape, w2_shape, top_k, dtype, M, block_shape=None):
    E, _, N = w2_shape
    known = get_moe_configs(E, N, dtype)
    if known:
        return known[min(known, key=lambda m: abs(m - M))]
    return get_default_config(M, E, N, w1_shape[2], top_k, dtype, block_shape)

def fused_experts(x, w1, w2, shares, chosen, quant_config=None):
    used.append(try_get_optimal_moe_config(w1.shape, w2.shape, chosen.shape[1], None, len(x)))
    if used[-1]["BLOCK_SIZE_M"] == 256:
        raise RuntimeError("out of resources")
    out = torch.zeros(x.shape)
    for row in range(len(x)):
        for share, expert in zip(shares[row], chosen[row]):
            gate, up = (w1[expert].float() @ x[row].float()).chunk(2)
            out[row] += share * (w2[expert].float() @ (torch.nn.functional.silu(gate) * up))
    return out.bfloat16()
"""


@pytest.fixture
def fused(tmp_path, monkeypatch):
    """The stand-in's module for experts."""
    folder = tmp_path / "site" / kernels.EXPERTS.replace(".", "/")
    folder.mkdir(parents=True)
    (folder / "fused_moe.py").write_text(FUSED)
    (tmp_path / "site" / "vllm-0.1.dist-info").mkdir()
    (tmp_path / "site" / "vllm-0.1.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 0.1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delenv(kernels.FOLDER, raising=False)
    for variable in kernels.QUIET:
        monkeypatch.setenv(variable, "")
    before = set(sys.modules)
    yield importlib.import_module(f"{kernels.EXPERTS}.fused_moe")
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "vllm":
            del sys.modules[name]


def kernel(m: int = 5) -> kernels.Kernel:
    return kernels.kernel(LAYER, [operands.weight(one, False, CPU) for one in LAYER.weights], m, CPU)


def test_a_call_runs_with_the_config_that_it_was_made_for(fused):
    found = kernel()
    for tile in (TILE, OTHER):
        out = found.call(tile)(0)
        assert fused.used[-1] == tile.values
        assert operands.error(out[found.sample], found.exact) < 0.01


def test_after_a_call_vllm_loads_its_own_configs_again_also_if_it_failed(fused):
    found, before = kernel(), fused.get_moe_configs
    found.call(TILE)(0)
    assert fused.get_moe_configs is before
    with pytest.raises(RuntimeError, match="out of resources"):
        found.call(Tile(256, 64, 64, 1, 4, 3))(0)
    assert fused.get_moe_configs is before


def test_the_present_config_is_that_of_a_file_or_the_default_with_tritons_defaults(fused, tmp_path, monkeypatch):
    default = Tile(32, 64, 32, 1, 4, 2)
    assert kernel().current == kernels.present(LAYER, 64) == kernels.default(LAYER, 64) == default
    vllm_files.write(tmp_path, LAYER.name("NVIDIA H200"), {1: TILE, 64: OTHER})
    monkeypatch.setenv(kernels.FOLDER, str(tmp_path))
    fused.get_moe_configs.cache_clear()
    assert [kernels.present(LAYER, m) for m in (1, 40, 4096)] == [TILE, OTHER, OTHER]


@pytest.mark.parametrize("variable", [None, "elsewhere"])
def test_a_file_is_readable_if_vllms_loader_finds_the_same_configs(fused, tmp_path, monkeypatch, variable):
    if variable:
        monkeypatch.setenv(kernels.FOLDER, variable)
    kernels.present(LAYER, 1)  # The loader caches that there is no file.
    vllm_files.write(tmp_path, LAYER.name("NVIDIA H200"), {1: TILE, 64: OTHER})
    kernels.check_readable(LAYER, tmp_path, {1: TILE, 64: OTHER})
    for tiles in ({1: TILE}, {1: OTHER, 64: OTHER}):
        with pytest.raises(GemmdbError, match="does not find the configs"):
            kernels.check_readable(LAYER, tmp_path, tiles)
    assert os.environ.get(kernels.FOLDER) == variable
    assert kernels.present(LAYER, 1) == kernels.default(LAYER, 1)


def test_a_version_without_a_function_is_named(fused, monkeypatch):
    monkeypatch.delattr(fused, "fused_experts")
    with pytest.raises(InputError, match=r"vLLM 0\.1 has no fused_experts, which gemmdb needs"):
        kernel()


def test_a_vllm_that_cannot_be_imported_is_one_line(fused, tmp_path):
    layer = Experts(4, 2, 128, 256, fp8=True)
    weights = [operands.weight(one, True, CPU) for one in layer.weights]
    for error in ("ImportError('libcudart.so.12: no such file')", "RuntimeError('two\\nlines')"):
        (Path(fused.__file__).parent / "config.py").write_text(f"raise {error}")
        with pytest.raises(InputError, match="this command needs vLLM, which cannot be imported here") as caught:
            kernels.kernel(layer, weights, 1, CPU)
        assert len(str(caught.value).splitlines()) == 1


def test_a_linear_has_vllms_default_without_a_file(monkeypatch):
    class Module:
        known = None

        @classmethod
        def get_w8a8_block_fp8_configs(cls, *_):
            return cls.known

    monkeypatch.setattr(kernels, "_module", lambda _: Module)
    assert kernels.present(Linear(256, 128), 7) == kernels.LINEAR_DEFAULT
    Module.known = {16: TILE.values, 64: OTHER.values}
    assert [kernels.present(Linear(256, 128), m) for m in (1, 48, 4096)] == [TILE, OTHER, OTHER]
