"""What the tests of the GPU generator share; none of them needs a GPU."""

from collections.abc import Callable

import pytest
from kit import gpu
from kit.devices import H200

from gemmdb.kernels.config import Config
from gemmdb.key.device import Device

BASES: dict[str, dict[str, str | int]] = {
    "tile": {"block_k": 128}, "gemv": {"stages": 1}, "narrow": {"block_k": 128},
    "persistent": {"block_m": 128, "block_n": 256, "warps": 8},
}  # fmt: skip


class Make:
    """Configs of our kernels that differ from a base in what is named: `make.tile(swap=1)`."""

    def __getattr__(self, kernel: str) -> Callable[..., Config]:
        return lambda **changes: gpu.make(kernel, **{**BASES.get(kernel, {}), **changes})


@pytest.fixture
def make() -> Make:
    return Make()


@pytest.fixture
def h200() -> Device:
    return H200
