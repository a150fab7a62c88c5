"""Our Triton kernels in Inductor's lowering, as far as no GPU is needed."""

import importlib.util

import pytest
import torch

import gemmdb.inductor
from gemmdb.inductor.decide import legality
from gemmdb.inductor.lower import triton
from gemmdb.inductor.lower.adapter import templates
from gemmdb.kernels.config import ATEN, Config

TILE = {
    "block_m": 16, "block_n": 64, "block_k": 128, "group_m": 8, "split_k": 1, "reduce": "none", "swap": 0,
    "load": "pointer", "dequant": "cast", "warps": 4, "stages": 3,
}  # fmt: skip


def tile(**changes: str | int) -> Config:
    return Config.of("triton", "tile", **TILE | changes)


SEEN = {"m": {"M_EVEN": False, "EVEN_K": True}, "k": {"EVEN_K": False}, "n": {"N_EVEN": False}}


@pytest.mark.parametrize("name", SEEN)
def test_constants_hold_for_every_value_of_a_symbolic_size(name: str, kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lowering as it is, in Inductor's graph with symbolic sizes, up to where a GPU would be needed."""
    asked: list[tuple[templates.Kernel, list[object]]] = []

    def stop(kernel: templates.Kernel, operands: object, out: tuple[object, list[object]], *rest: object) -> object:
        asked.append((kernel, list(out[1])))
        raise triton.Refused("that far")

    monkeypatch.setattr(legality, "rejection", lambda config, query, rows=None: None)
    monkeypatch.setattr(templates, "gemm", stop)
    x, w = torch.randn(32, 64).t().contiguous().t(), torch.randn(64, 96)
    for tensor, axis in {"m": [(x, 0)], "k": [(x, 1), (w, 0)], "n": [(w, 1)]}[name]:
        torch._dynamo.mark_dynamic(tensor, axis, min=16, max=256)
    with gemmdb.inductor.force(tile(split_k=2, reduce="fixup", block_k=64, block_m=32, block_n=32)):
        kit.close(kit.compiled(lambda x, w: x @ w, x, w), x @ w)
    ((kernel, sizes),) = asked
    assert {key: kernel.constants[key] for key in SEEN[name]} == SEEN[name]
    assert [isinstance(size, int) or size.is_number for size in sizes] == [name != "m", name != "n"]
    # room for the largest sizes: 8 rows or columns of tiles for a symbolic one
    tiles = {"m": 8 * 3, "n": 1 * 8, "k": 1 * 3}[name]
    assert kernel.partials == tiles * 2 * 32 * 32
    (entry,) = gemmdb.inductor.stats()["products"]
    assert entry["note"] == "that far"
    assert entry["ranges"] == {name: [16, 256]}


def test_a_multiple_of_a_symbol_keeps_its_constants(kit, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[templates.Kernel] = []

    def stop(kernel: templates.Kernel, *rest: object) -> object:
        asked.append(kernel)
        raise triton.Refused("that far")

    monkeypatch.setattr(legality, "rejection", lambda config, query, rows=None: None)
    monkeypatch.setattr(templates, "gemm", stop)
    x, w = torch.randn(8, 5, 64), torch.randn(320, 48)
    torch._dynamo.mark_dynamic(w, 1)
    torch._dynamo.mark_dynamic(x, 1)
    with gemmdb.inductor.force(tile(block_k=64)):
        kit.compiled(lambda x, w: x.reshape(8, -1) @ w[: x.shape[1] * 64], x, w)
    assert [kernel.constants["EVEN_K"] for kernel in asked] == [True]


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="with triton, the kernel is generated")
def test_a_kernel_that_cannot_be_generated_is_aten_with_a_note(kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legality, "rejection", lambda config, query, rows=None: None)
    x, w = torch.randn(16, 64), torch.randn(64, 32)
    with gemmdb.inductor.force(tile(block_k=16)):
        kit.close(kit.compiled(lambda x, w: torch.relu(x @ w), x, w), torch.relu(x @ w))
    (entry,) = gemmdb.inductor.stats()["products"]
    assert Config.parse(entry["config"]) == ATEN
    assert "Inductor could not generate the kernel: " in entry["note"]
