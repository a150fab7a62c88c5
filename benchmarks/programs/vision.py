"""Vision models of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.programs.hugging import Architecture, Inputs, forwarding
from benchmarks.programs.program import Program

NEEDS = ("transformers",)
BASE = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 6, "num_attention_heads": 12}
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
        "image_size": 32, "patch_size": 8}  # fmt: skip
LARGE = {"hidden_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 16}
VIT = Architecture("ViTConfig", "ViTForImageClassification", BASE, TINY)
DINOV2 = Architecture("Dinov2Config", "Dinov2Model", {**LARGE, "image_size": 224, "patch_size": 14}, TINY)
SIGLIP = Architecture("SiglipVisionConfig", "SiglipVisionModel",
    {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 4, "num_attention_heads": 16,
     "image_size": 384, "patch_size": 14}, TINY)  # fmt: skip
CLIP_TEXT = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
             "num_attention_heads": 4, "max_position_embeddings": 16}  # fmt: skip
ENDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
CLIP = Architecture("CLIPConfig", "CLIPModel",
    {"text_config": {"num_hidden_layers": 4, **ENDS}, "vision_config": {"num_hidden_layers": 4}},
    {"text_config": {**CLIP_TEXT, **ENDS}, "vision_config": TINY, "projection_dim": 32})  # fmt: skip
SWIN = Architecture("SwinConfig", "SwinForImageClassification",
    {"embed_dim": 128, "depths": [1, 1, 2, 1], "num_heads": [4, 8, 16, 32]},
    {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "image_size": 32, "patch_size": 4,
     "window_size": 4})  # fmt: skip
SEGFORMER = Architecture("SegformerConfig", "SegformerForSemanticSegmentation",
    {"hidden_sizes": [64, 128, 320, 512], "depths": [1, 1, 2, 1], "decoder_hidden_size": 768},
    {"hidden_sizes": [16, 32], "depths": [1, 1], "num_encoder_blocks": 2, "sr_ratios": [2, 1], "patch_sizes": [3, 3],
     "strides": [2, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2], "decoder_hidden_size": 32},
    "eager")  # fmt: skip


def pictures(rows: int, width: int = 224, texts: int = 0) -> Inputs:
    """Square pictures, and `texts` sequences of tokens beside them."""

    def inputs(config: Any, size: str, device: str) -> dict[str, Any]:
        from benchmarks.programs.building import noise, tokens

        shape = (rows, 3, width, width) if size == "gpu" else (2, 3, 32, 32)
        found: dict[str, Any] = {"pixel_values": noise(*shape, device=device)}
        if texts:
            length = config.text_config.max_position_embeddings
            found["input_ids"] = tokens(config.text_config.vocab_size, texts, length, device=device)
        return found

    return inputs


def programs() -> Iterator[Program]:
    """All programs of this module."""
    for name, architecture, inputs in (
        ("vit-base-16", VIT, pictures(16)),
        ("dinov2-large-8", DINOV2, pictures(8)),
        ("siglip-so400m-4", SIGLIP, pictures(4, 384)),
        ("clip-8+4", CLIP, pictures(8, texts=4)),
        ("swin-base-8", SWIN, pictures(8)),
        ("segformer-2x512", SEGFORMER, pictures(2, 512)),
    ):
        yield Program(name, "bf16", forwarding(architecture, inputs), NEEDS)
