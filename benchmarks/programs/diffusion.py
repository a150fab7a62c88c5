"""Denoisers of diffusers: a UNet, and the transformers of DiT, PixArt, SD3 and Flux."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.programs.program import Built, Program

NEEDS = ("diffusers",)
Sizes = Mapping[str, Any]
"""The arguments of a model's class."""
Inputs = Callable[[Any, bool, str], dict[str, Any]]
"""The keyword arguments of a model, from its config, whether it is large, and the device."""


def make(name: str, gpu: Sizes, tiny: Sizes, inputs: Inputs, size: str, device: str) -> Built:
    """One denoising step of a model by its class in diffusers."""
    import diffusers

    from benchmarks.programs.building import making, of_model, stirred

    with making(device):
        model = getattr(diffusers, name)(**(gpu if size == "gpu" else tiny)).eval()
    return of_model(stirred(model), {**inputs(model.config, size == "gpu", device), "return_dict": False})


def _noise(device: str, *sizes: int) -> Any:
    from benchmarks.programs.building import noise

    return noise(*sizes, device=device)


def _steps(rows: int, device: str) -> Any:
    """The timesteps of `rows` samples."""
    import torch

    return torch.full((rows,), 500, device=device)


def unet(config: Any, large: bool, device: str) -> dict[str, Any]:
    """Two latents with a text each, as in Stable Diffusion with guidance."""
    width = 64 if large else 8
    return {"sample": _noise(device, 2, config.in_channels, width, width), "timestep": _steps(2, device),
            "encoder_hidden_states": _noise(device, 2, 77 if large else 8, config.cross_attention_dim)}  # fmt: skip


def dit(config: Any, large: bool, device: str) -> dict[str, Any]:
    """Latents with a class each."""
    import torch

    rows = 4 if large else 2
    labels = torch.zeros(rows, dtype=torch.int64, device=device)
    latent = _noise(device, rows, config.in_channels, config.sample_size, config.sample_size)
    return {"hidden_states": latent, "timestep": _steps(rows, device), "class_labels": labels}


def pixart(config: Any, large: bool, device: str) -> dict[str, Any]:
    """Latents with a text each."""
    latent = _noise(device, 2, config.in_channels, config.sample_size, config.sample_size)
    return {"hidden_states": latent, "timestep": _steps(2, device),
            "encoder_hidden_states": _noise(device, 2, 120 if large else 8, config.caption_channels),
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}}  # fmt: skip


def sd3(config: Any, large: bool, device: str) -> dict[str, Any]:
    """Latents with a text and its summary each."""
    latent = _noise(device, 2, config.in_channels, config.sample_size, config.sample_size)
    return {"hidden_states": latent, "timestep": _steps(2, device),
            "encoder_hidden_states": _noise(device, 2, 154 if large else 8, config.joint_attention_dim),
            "pooled_projections": _noise(device, 2, config.pooled_projection_dim)}  # fmt: skip


def flux(config: Any, large: bool, device: str) -> dict[str, Any]:
    """A packed latent with a text and its summary."""
    import torch

    latents, words = (1024, 256) if large else (16, 8)
    return {"hidden_states": _noise(device, 1, latents, config.in_channels),
            "encoder_hidden_states": _noise(device, 1, words, config.joint_attention_dim),
            "pooled_projections": _noise(device, 1, config.pooled_projection_dim),
            "timestep": torch.full((1,), 0.5, device=device, dtype=torch.bfloat16),
            "img_ids": torch.zeros(latents, 3, device=device), "txt_ids": torch.zeros(words, 3, device=device),
            "guidance": torch.full((1,), 3.5, device=device, dtype=torch.bfloat16)}  # fmt: skip


UNET = {"in_channels": 4, "out_channels": 4, "layers_per_block": 1,
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")}  # fmt: skip
HEADS = {"attention_head_dim": 16, "num_attention_heads": 4, "num_layers": 1, "sample_size": 8}


def programs() -> Iterator[Program]:
    """All programs of this module."""
    for name, model, gpu, tiny, inputs in (
        ("unet-2x64", "UNet2DConditionModel",
         {**UNET, "sample_size": 64, "block_out_channels": (320, 640), "cross_attention_dim": 768,
          "attention_head_dim": 8},
         {**UNET, "sample_size": 8, "block_out_channels": (16, 32), "cross_attention_dim": 32,
          "attention_head_dim": 2, "norm_num_groups": 8}, unet),
        ("dit-xl-4", "DiTTransformer2DModel", {"num_layers": 4}, {**HEADS, "norm_num_groups": 8}, dit),
        ("pixart-2", "PixArtTransformer2DModel", {"num_layers": 4, "caption_channels": 4096, "sample_size": 64},
         {**HEADS, "cross_attention_dim": 64, "caption_channels": 32}, pixart),
        ("sd3-2x64", "SD3Transformer2DModel",
         {"num_layers": 4, "sample_size": 64, "num_attention_heads": 24, "caption_projection_dim": 1536,
          "pooled_projection_dim": 2048, "joint_attention_dim": 4096},
         {**HEADS, "caption_projection_dim": 64, "joint_attention_dim": 32, "pooled_projection_dim": 32,
          "in_channels": 4, "out_channels": 4, "pos_embed_max_size": 8}, sd3),
        ("flux-1024", "FluxTransformer2DModel", {"num_layers": 1, "num_single_layers": 2, "guidance_embeds": True},
         {"num_layers": 1, "num_single_layers": 1, "in_channels": 16, "attention_head_dim": 16,
          "num_attention_heads": 4, "joint_attention_dim": 32, "pooled_projection_dim": 32, "axes_dims_rope": (4, 4, 8),
          "guidance_embeds": True}, flux),
    ):  # fmt: skip
        yield Program(f"diffusers-{name}", "bf16", functools.partial(make, model, gpu, tiny, inputs), NEEDS)
