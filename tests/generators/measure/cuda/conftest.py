"""What the tests of the GPU generator share; none of them needs a GPU."""

import pytest
from kit.devices import H200

from gemmdb.kernels.config import Config
from gemmdb.key.device import Device


class Make:
    """Configs of our kernels that differ from a base in what is named."""

    def tile(self, **changes: str | int) -> Config:
        base: dict[str, str | int] = {
            "block_m": 16, "block_n": 64, "block_k": 128, "group_m": 8, "split_k": 1, "reduce": "none", "swap": 0,
            "load": "pointer", "dequant": "cast", "warps": 4, "stages": 3,
        }  # fmt: skip
        return Config.of("triton", "tile", **{**base, **changes})

    def gemv(self, **changes: str | int) -> Config:
        base: dict[str, str | int] = {
            "block_n": 8, "block_k": 256, "unroll": 1, "dequant": "cast", "warps": 4, "stages": 1,
        }  # fmt: skip
        return Config.of("triton", "gemv", **{**base, **changes})

    def persistent(self, **changes: str | int) -> Config:
        base: dict[str, str | int] = {
            "block_m": 128, "block_n": 256, "block_k": 64, "group_m": 8, "swap": 0, "dequant": "cast", "resident": 1,
            "warps": 8, "stages": 3,
        }  # fmt: skip
        return Config.of("triton", "persistent", **{**base, **changes})

    def narrow(self, **changes: str | int) -> Config:
        base: dict[str, str | int] = {
            "block_m": 16, "block_n": 64, "block_k": 128, "split_k": 1, "swap": 0, "stagger": 1, "rows": "mask",
            "dequant": "cast", "warps": 4, "stages": 3,
        }  # fmt: skip
        return Config.of("triton", "narrow", **{**base, **changes})


@pytest.fixture
def make() -> Make:
    return Make()


@pytest.fixture
def h200() -> Device:
    return H200
