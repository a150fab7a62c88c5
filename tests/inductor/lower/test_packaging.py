"""Kernels that build tensor maps, where Inductor writes C++: refused with a reason unless each program has its own."""

import pytest

torch = pytest.importorskip("torch")

from torch._inductor import graph, utils
from torch._inductor.codegen.cuda import device_op_overrides

import gemmdb.inductor
from gemmdb import Config
from gemmdb.inductor.decide import legality
from gemmdb.inductor.lower import triton
from gemmdb.inductor.lower.adapter import inductor_templates, templates
from gemmdb.kernels.config import ATEN

TILE = {"block_m": 16, "block_n": 16, "block_k": 16, "group_m": 8, "warps": 4, "stages": 3}
OURS = {"split_k": 1, "reduce": "none", "swap": 0, "dequant": "cast"}
MAPPED = [
    Config.of("triton", "tile", **TILE, **OURS, load="tma"),
    Config.of("triton", "inductor_persistent_tma", **TILE),
]
POINTERS = Config.of("triton", "tile", **TILE, **OURS, load="pointer")
SIZES = {"one": "int64_t size[] = {128};", "all": "int64_t size[] = {static_cast<int64_t>(128) * grid_0 * grid_1};"}


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The kernels that would have been generated, had there been a GPU and its aligned inputs."""
    found: list[object] = []

    def stop(kernel: object, *rest: object) -> object:
        found.append(kernel)
        raise triton.Refused("that far")

    monkeypatch.setattr(graph, "should_assume_input_aligned", utils.tensor_is_aligned)
    monkeypatch.setattr(legality, "rejection", lambda config, query, rows=None: None)
    monkeypatch.setattr(templates, "gemm", stop)
    monkeypatch.setattr(inductor_templates, "gemm", stop)
    # It counts the multiprocessors.
    monkeypatch.setattr(inductor_templates, "tma_constants", lambda *row_major: {})
    return found


@pytest.mark.slow
@pytest.mark.parametrize("config", [*MAPPED, POINTERS], ids=["tile", "inductor", "pointers"])
@pytest.mark.parametrize("room", SIZES)
def test_tensor_maps_in_a_package(
    kit, reached: list[object], monkeypatch: pytest.MonkeyPatch, config: Config, room: str
) -> None:
    monkeypatch.setattr(
        device_op_overrides.CUDADeviceOpOverrides, "cpp_scratch", lambda *rest, **named: ([SIZES[room]], "scratch")
    )
    x, w = torch.randn(16, 64), torch.randn(64, 32)
    with torch._inductor.config.patch(cpp_wrapper=True), gemmdb.inductor.force(config):
        kit.close(kit.compiled(lambda x, w: torch.relu(x @ w), x, w), torch.relu(x @ w))
    (entry,) = gemmdb.inductor.stats()["products"]
    assert Config.parse(entry["config"]) == ATEN
    refused = config != POINTERS and room == "one"
    assert len(reached) == (0 if refused else 1)
    assert ("room for the tensor maps" in entry["note"]) == refused


@pytest.mark.parametrize("config", MAPPED, ids=["tile", "inductor"])
def test_tensor_maps_outside_of_a_package(kit, reached: list[object], config: Config) -> None:
    x, w = torch.randn(16, 64), torch.randn(64, 32)
    with gemmdb.inductor.force(config):
        kit.compiled(lambda x, w: torch.relu(x @ w), x, w)
    assert len(reached) == 1
