"""Image models of timm."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.programs.program import Built, Program

NEEDS = ("timm", "torchvision")


def make(name: str, rows: int, gpu: Mapping[str, Any], tiny: Mapping[str, Any], size: str, device: str) -> Built:
    """A batch of pictures through a model by its name in timm.models."""
    import timm.models

    from benchmarks.programs.building import making, noise, of_model, stirred

    width = 224 if size == "gpu" else 32
    with making(device):
        model = getattr(timm.models, name)(**(gpu if size == "gpu" else tiny)).eval()
    pictures = noise(rows if size == "gpu" else 2, 3, width, width, device=device)
    return of_model(stirred(model), {"x": pictures})


def programs() -> Iterator[Program]:
    """All programs of this module."""
    small = {"img_size": 32, "patch_size": 8, "embed_dim": 64}
    mixer = {"num_blocks": 6, "embed_dim": 768, "num_classes": 0}  # The weights of its head begin as zeros.
    vit = {**small, "depth": 1, "num_heads": 4}
    stages = {"depths": (1, 1, 1, 1), "dims": (8, 16, 16, 32)}
    layers = {"layers": (1, 1, 1, 1), "channels": (8, 16, 16, 16), "stem_width": 8, "base_width": 8}
    for name, model, rows, gpu, tiny in (
        ("vit-large-8", "vit_large_patch16_224", 8, {"depth": 6}, vit),
        ("mixer-b-16", "MlpMixer", 16, mixer, {**mixer, **small, "num_blocks": 1}),
        ("convnext-base-8", "ConvNeXt", 8, {"depths": (2, 2, 4, 2), "dims": (128, 256, 512, 1024)}, stages),
        ("resnet50-16", "resnet50", 16, {}, layers),
        ("eva02-base-8", "eva02_base_patch14_224", 8, {"depth": 6}, vit),
    ):
        yield Program(f"timm-{name}", "bf16", functools.partial(make, model, rows, gpu, tiny), NEEDS)
