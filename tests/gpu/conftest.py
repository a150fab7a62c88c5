"""GPU tests are skipped, visibly, where there is no GPU to run them on. Configs of our kernels that they share."""

from collections.abc import Callable

import pytest

from gemmdb.config import Config

Make = Callable[..., Config]
BASES: dict[str, dict[str, str | int]] = {
    "tile": {
        "block_m": 16, "block_n": 64, "block_k": 64, "group_m": 8, "split_k": 1, "reduce": "none", "swap": 0,
        "load": "pointer", "dequant": "cast", "warps": 4, "stages": 3,
    },
    "gemv": {"block_n": 8, "block_k": 256, "unroll": 1, "dequant": "cast", "warps": 4, "stages": 3},
    "narrow": {
        "block_m": 16, "block_n": 64, "block_k": 64, "split_k": 1, "swap": 0, "stagger": 1, "rows": "mask",
        "dequant": "cast", "warps": 4, "stages": 3,
    },
    "persistent": {
        "block_m": 64, "block_n": 128, "block_k": 64, "group_m": 8, "swap": 0, "dequant": "cast", "resident": 1,
        "warps": 4, "stages": 3,
    },
}  # fmt: skip
"""A small config of each kernel: what a test does not name."""


@pytest.fixture
def make() -> Make:
    """Configs by kernel, with the parameters that differ from its base."""
    return lambda kernel, **changes: Config.of("triton", kernel, **{**BASES[kernel], **changes})


@pytest.fixture
def config(request: pytest.FixtureRequest, make: Make) -> Config:
    """The config of an indirect parameter: a kernel and what differs from its base."""
    kernel, changes = request.param
    return make(kernel, **changes)


def _reason() -> str:
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        return f"needs torch and triton: {error}"
    return "" if torch.cuda.is_available() else "needs an NVIDIA GPU: torch.cuda.is_available() is false"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _reason()
    for item in items:
        if "tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))
