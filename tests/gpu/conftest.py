"""GPU tests are skipped, visibly, where there is no GPU to run them on."""

import pytest


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
