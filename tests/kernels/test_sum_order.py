"""The instructions of a summation order, as Triton's compiler makes them; and that slices fit into registers."""

import importlib.util
import re
import subprocess
from pathlib import Path

import pytest
from kit.devices import A100, H200
from kit.gpu import make

from gemmdb import Problem
from gemmdb.generators.measure.cuda.compilers import compile_unit
from gemmdb.generators.measure.cuda.render import plan
from gemmdb.kernels.triton.sum_order import WARP, WARP_GROUP, sum_order

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
PROBLEM = Problem.gemm("mm", m=200, n=4096, k=4096)
TILES = [
    make("tile"), make("tile", block_n=16, block_k=256), make("tile", swap=1), make("tile", swap=1, warps=2),
    make("tile", block_m=64), make("tile", block_m=64, block_n=32, warps=2), make("narrow", stagger=0, swap=1),
    make("tile", swap=1, split_k=4, reduce="fixup"), make("tile", swap=1, slices=4),
]  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def code(config, capability=90):
    (launch,) = plan(PROBLEM, config).launches
    return compile_unit(launch.unit, capability).kernel


@pytest.mark.parametrize("config", TILES, ids=str)
@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.arch)
def test_the_unit_is_the_instruction(config, device):
    """All instructions take 16 elements of K."""
    text = code(config, device.capability).asm["ptx"]
    found = set(re.findall(r"(wgmma\.mma_async|mma\.sync)\S*\.m\d+n\d+k(\d+)", text))
    name = {WARP: "mma.sync", WARP_GROUP: "wgmma.mma_async"}[sum_order(config, PROBLEM, device).unit]
    assert found == {(name, "16")}


@pytest.mark.parametrize(("m", "n", "warps"), [(64, 64, 4), (64, 128, 4), (128, 128, 8)])
def test_the_sums_of_slices_stay_in_registers(m, n, warps, tmp_path):
    """Sums that go to memory and back would take many times as long: Triton's pointers are kept for each slice, not for
    all of them."""
    import triton

    path = tmp_path / "kernel.cubin"
    path.write_bytes(code(make("tile", block_m=m, block_n=n, warps=warps, slices=4)).asm["cubin"])
    tool = Path(triton.__file__).with_name("backends") / "nvidia" / "bin" / "cuobjdump"
    said = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True)
    assert re.search(r"REG:\d+ STACK:0 ", said.stdout + said.stderr)
