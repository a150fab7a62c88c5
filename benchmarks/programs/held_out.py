"""Programs that are not in the suite: other models, and other sizes. No rule of gemmdb was made with them.

python -m benchmarks.programs measure --source benchmarks/programs/held_out.py --out FILE.jsonl
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.programs import decoders, encoders, vision
from benchmarks.programs.decoders import NO_TOKENS, SMALL, gated, named, widths
from benchmarks.programs.hugging import Architecture, Inputs, decoding, forwarding, text
from benchmarks.programs.program import Built, Program
from benchmarks.programs.vision import pictures

NEEDS = ("transformers",)
STABLELM = gated("StableLm", widths(2048, 5632, 32, 32, 100352), partial_rotary_factor=0.25)
OLMO2 = gated("Olmo2", widths(4096, 11008, 32, 32, 100352))
GRANITE = gated("Granite", widths(2048, 8192, 32, 8, 49155))
SMOLLM = gated("Llama", widths(576, 1536, 9, 3, 49152, 8))
TINYLLAMA = gated("Llama", widths(2048, 5632, 32, 4, 32000))
STARCODER2 = gated("Starcoder2", widths(3072, 12288, 24, 2, 49152), use_bias=True, sliding_window=None)
PHI = gated("Phi", widths(2560, 10240, 32, 32, 51200))
NEOX = gated("GPTNeoX", widths(2048, 8192, 16, 16, 50304))
GEMMA3 = Architecture(
    "Gemma3TextConfig", "Gemma3ForCausalLM", widths(2560, 10240, 8, 4, 262208), SMALL,
    both={**NO_TOKENS, "head_dim": 256, "max_position_embeddings": 4096},
)  # fmt: skip
XLMR = Architecture("XLMRobertaConfig", "XLMRobertaModel", {**encoders.LARGE, "vocab_size": 250002}, encoders.TINY)
DISTILBERT = Architecture(
    "DistilBertConfig", "DistilBertModel", {"dim": 768, "hidden_dim": 3072, "n_layers": 6, "n_heads": 12},
    {"dim": 64, "hidden_dim": 128, "n_layers": 1, "n_heads": 4, "vocab_size": 320},
)  # fmt: skip
ELECTRA = Architecture(
    "ElectraConfig", "ElectraForPreTraining", {**encoders.MAKERS, "embedding_size": 768},
    {**encoders.TINY, "embedding_size": 64},
)  # fmt: skip
ALBERT = Architecture(
    "AlbertConfig", "AlbertModel", {**encoders.MAKERS, "embedding_size": 128, "num_hidden_layers": 12},
    {**encoders.TINY, "embedding_size": 64},
)  # fmt: skip
MPNET = Architecture("MPNetConfig", "MPNetModel", {**encoders.MAKERS, "vocab_size": 30527}, encoders.TINY, "eager")
ESM = Architecture(
    "EsmConfig", "EsmModel",
    {"hidden_size": 640, "intermediate_size": 2560, "num_hidden_layers": 6, "num_attention_heads": 20}, encoders.TINY,
    both={"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32, "position_embedding_type": "rotary"},
)  # fmt: skip
M2M = Architecture(
    "M2M100Config", "M2M100ForConditionalGeneration",
    {"d_model": 1024, "encoder_layers": 3, "decoder_layers": 3, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096,
     "vocab_size": 128112}, encoders.BART.tiny,
    both={**encoders.ZEROS, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0},
)  # fmt: skip
DEIT = Architecture("DeiTConfig", "DeiTModel", {**vision.BASE, "hidden_size": 384, "intermediate_size": 1536,
                    "num_attention_heads": 6}, vision.TINY)  # fmt: skip
BEIT = Architecture("BeitConfig", "BeitModel", vision.BASE, vision.TINY, both={"drop_path_rate": 0.0})
CONVNEXT2 = Architecture(
    "ConvNextV2Config", "ConvNextV2Model", {"hidden_sizes": [96, 192, 384, 768], "depths": [1, 1, 3, 1]},
    {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "image_size": 32}, "eager",
)  # fmt: skip
VIT_LARGE = Architecture(
    "ViTConfig", "ViTForImageClassification",
    {**vision.LARGE, "intermediate_size": 4096, "image_size": 384, "patch_size": 16}, vision.TINY,
)  # fmt: skip
CLIP_LARGE = dataclasses.replace(vision.CLIP, gpu={
    "text_config": {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 4,
                    **vision.ENDS},
    "vision_config": {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
                      "num_hidden_layers": 4, "image_size": 336, "patch_size": 14}, "projection_dim": 768,
})  # fmt: skip
UNDROPPED = dataclasses.replace(decoders.OPT, both={**decoders.OPT.both, "dropout": 0.0})
"""Masks of dropout would differ between the ways, and so would the gradients."""

DECODES: Mapping[str, tuple[Architecture, int, int]] = {
    "stablelm-decode-3": (STABLELM, 3, 700), "pythia-decode-6": (NEOX, 6, 512), "olmo2-decode-1": (OLMO2, 1, 333),
    "granite-decode-12": (GRANITE, 12, 1024), "gemma3-decode-5": (GEMMA3, 5, 600),
    "smollm-decode-24": (SMOLLM, 24, 512),
    "starcoder2-decode-7": (STARCODER2, 7, 900), "llama-decode-48": (decoders.LLAMA, 48, 512),
    "qwen2-decode-2": (decoders.QWEN2, 2, 2048), "mistral-decode-1": (decoders.MISTRAL, 1, 1024),
}  # fmt: skip
"""Architecture, rows and context of decode steps."""
FORWARDS: Mapping[str, tuple[Architecture, Inputs]] = {
    "phi-prefill-1x65": (PHI, text(1, 65, masked=True, use_cache=False)),
    "tinyllama-prefill-3x211": (TINYLLAMA, text(3, 211, masked=True, use_cache=False, logits_to_keep=1)),
    "gemma2-prefill-1x1500": (decoders.GEMMA2, text(1, 1500, masked=True, use_cache=False, logits_to_keep=1)),
    "bert-3x77": (encoders.bert("sdpa"), text(3, 77)),
    "bert-eager-12x200": (encoders.bert("eager"), text(12, 200, masked=True)),
    "distilbert-5x200": (DISTILBERT, text(5, 200)), "electra-12x77": (ELECTRA, text(12, 77)),
    "albert-8x160": (ALBERT, text(8, 160)), "mpnet-4x333": (MPNET, text(4, 333)),
    "xlm-roberta-large-2x500": (XLMR, text(2, 500)), "esm-6x180": (ESM, text(6, 180, masked=True)),
    "t5-encoder-3x300": (encoders.T5_ENCODER, text(3, 300)),
    "m2m100-2x64+16": (M2M, encoders.both_texts(2, 64, 16)),
    "whisper-2x1500+10": (encoders.WHISPER, encoders.mel(2, 10)),
    "wav2vec2-1x7s": (encoders.WAV2VEC, encoders.wave(1, 112000)),
    "deit-small-5": (DEIT, pictures(5)), "beit-base-6": (BEIT, pictures(6)),
    "vit-large-384-3": (VIT_LARGE, pictures(3, 384)),
    "convnextv2-10": (CONVNEXT2, pictures(10)), "clip-large-2+6": (CLIP_LARGE, pictures(2, 336, texts=6)),
}  # fmt: skip
"""Architecture and inputs of forward passes."""


def train(architecture: Architecture, rows: int, length: int, size: str, device: str) -> Built:
    """A training step of a language model."""
    from benchmarks.programs import training_step
    from benchmarks.programs.building import tokens

    model = architecture.made(size, device).float().train()
    ids = tokens(model.config.vocab_size, *((rows, length) if size == "gpu" else (2, 16)), device=device)
    inputs: dict[str, Any] = {"input_ids": ids, "labels": ids}
    return training_step.of_loss(model, lambda run: run(**inputs).loss, device)


def programs() -> Iterator[Program]:
    """All programs of this module."""
    for name, sizes in DECODES.items():
        yield Program(name, "bf16", decoding(*sizes), NEEDS)
    for name, (architecture, inputs) in FORWARDS.items():
        yield Program(name, "bf16", forwarding(architecture, inputs), NEEDS)
    for name, of in (
        ("train-opt-3x300", UNDROPPED),
        ("train-tinyllama-2x700", named(TINYLLAMA, num_hidden_layers=2)),
    ):
        rows, length = map(int, name.rsplit("-", 1)[1].split("x"))
        make = functools.partial(train, of, rows, length)
        yield Program(name, "training", make, NEEDS, grad=True, tolerance=0.05)
