"""Which packages are installed and can be imported."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Iterable

OPERATORS = ("nms", "qnms")
"""The operators that torchvision looks for when it is imported."""


def missing(needs: Iterable[str]) -> str:
    """Why one of the packages cannot be used; empty if all can."""
    return next((why for why in map(_why, needs) if why), "")


@functools.cache
def _why(package: str) -> str:
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed"
    try:
        # transformers and timm import torchvision where it is installed.
        _torchvision()
        importlib.import_module(package)
    except Exception as error:
        return f"{package}: {type(error).__name__}: {error}"
    return ""


@functools.cache
def _torchvision() -> None:
    """Import torchvision, if it is installed. The index has it for CUDA only. With torch for CPUs its operators cannot
    be loaded, and the import fails. The programs use none of them."""
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        import torch

        for name in OPERATORS:
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")
