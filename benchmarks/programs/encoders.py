"""Encoders and encoder-decoders of transformers, for text and for speech."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.programs.hugging import Architecture, Inputs, forwarding, text
from benchmarks.programs.program import Program

NEEDS = ("transformers",)
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
        "vocab_size": 320}  # fmt: skip
MAKERS = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 6, "num_attention_heads": 12}
LARGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 6, "num_attention_heads": 16}
ZEROS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def bert(attention: str) -> Architecture:
    """BERT-base, six layers."""
    return Architecture("BertConfig", "BertForMaskedLM", MAKERS, TINY, attention)


ROBERTA = Architecture("RobertaConfig", "RobertaModel", {**LARGE, "vocab_size": 50265}, TINY)
MODERN = Architecture(
    "ModernBertConfig", "ModernBertForMaskedLM",
    {"hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 6, "num_attention_heads": 12},
    {**TINY, "num_hidden_layers": 2}, both={"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "cls_token_id": 1, "sep_token_id": 2},
)  # fmt: skip
DEBERTA = Architecture("DebertaV2Config", "DebertaV2Model",
    {**MAKERS, "vocab_size": 128100, "position_buckets": 256, "norm_rel_ebd": "layer_norm"},
    {**TINY, "position_buckets": 8}, "eager",
    {"max_position_embeddings": 512, "type_vocab_size": 0, "relative_attention": True, "share_att_key": True,
     "pos_att_type": ["p2c", "c2p"]})  # fmt: skip
T5_GPU = {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 4, "num_heads": 12, "vocab_size": 32128}
T5_TINY = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 1, "num_heads": 4, "vocab_size": 320}
T5_ENCODER = Architecture("T5Config", "T5EncoderModel", T5_GPU, T5_TINY, "eager", {"is_encoder_decoder": False})
FLAN = Architecture("T5Config", "T5ForConditionalGeneration",
    {**T5_GPU, "d_model": 1024, "d_ff": 2816, "num_heads": 16, "num_layers": 3}, T5_TINY, "eager",
    {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, **ZEROS})  # fmt: skip
BART = Architecture("BartConfig", "BartForConditionalGeneration",
    {"d_model": 1024, "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 16,
     "decoder_attention_heads": 16, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096},
    {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
     "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 320},
    both={**ZEROS, "forced_eos_token_id": None})  # fmt: skip
WHISPER_TINY = {"d_model": 64, "encoder_layers": 1, "encoder_attention_heads": 4, "encoder_ffn_dim": 128,
                "decoder_layers": 1, "decoder_attention_heads": 4, "decoder_ffn_dim": 128, "vocab_size": 320,
                "max_source_positions": 16, "num_mel_bins": 80}  # fmt: skip
WHISPER_GPU = {"d_model": 1280, "encoder_layers": 4, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120,
               "decoder_layers": 4, "decoder_attention_heads": 20, "decoder_ffn_dim": 5120,
               "num_mel_bins": 128}  # fmt: skip
WHISPER = Architecture("WhisperConfig", "WhisperForConditionalGeneration", WHISPER_GPU, WHISPER_TINY, both=ZEROS)
WAV2VEC = Architecture(
    "Wav2Vec2Config", "Wav2Vec2Model", {**MAKERS, "apply_spec_augment": False},
    {**TINY, "apply_spec_augment": False, "conv_dim": (32, 32), "conv_stride": (5, 2), "conv_kernel": (10, 3),
     "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4},
)  # fmt: skip
HUBERT = Architecture(
    "HubertConfig", "HubertModel", {**LARGE, "feat_extract_norm": "layer", "do_stable_layer_norm": True,
    "conv_bias": True, "apply_spec_augment": False},
    {**TINY, "apply_spec_augment": False, "conv_dim": (32, 32), "conv_stride": (5, 2), "conv_kernel": (10, 3),
     "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4},
)  # fmt: skip


def both_texts(rows: int, source: int, target: int) -> Inputs:
    """Tokens for an encoder and for a decoder."""

    def inputs(config: Any, size: str, device: str) -> dict[str, Any]:
        encoder = text(rows, source)(config, size, device)
        decoder = text(rows, target)(config, size, device)
        return {**encoder, "decoder_input_ids": decoder["input_ids"], "use_cache": False}

    return inputs


def mel(rows: int, written: int) -> Inputs:
    """A spectrogram for Whisper's encoder of all its positions, and tokens for its decoder."""

    def inputs(config: Any, size: str, device: str) -> dict[str, Any]:
        from benchmarks.programs.building import noise

        length = 2 * config.max_source_positions
        features = noise(rows if size == "gpu" else 1, config.num_mel_bins, length, device=device)
        decoder = text(rows, written)(config, size, device)["input_ids"][: len(features)]
        return {"input_features": features, "decoder_input_ids": decoder, "use_cache": False}

    return inputs


def wave(rows: int, samples: int) -> Inputs:
    """Sound at 16 kHz."""

    def inputs(config: Any, size: str, device: str) -> dict[str, Any]:
        from benchmarks.programs.building import noise

        return {"input_values": noise(*((rows, samples) if size == "gpu" else (2, 400)), device=device)}

    return inputs


def programs() -> Iterator[Program]:
    """All programs of this module."""
    for name, architecture, inputs in (
        ("bert-8x128", bert("sdpa"), text(8, 128)),
        ("bert-eager-8x128", bert("eager"), text(8, 128)),
        ("roberta-large-16x64", ROBERTA, text(16, 64)),
        ("modernbert-4x512", MODERN, text(4, 512)),
        ("deberta-8x128", DEBERTA, text(8, 128)),
        ("t5-encoder-8x128", T5_ENCODER, text(8, 128)),
        ("flan-t5-4x256+32", FLAN, both_texts(4, 256, 32)),
        ("bart-4x256+64", BART, both_texts(4, 256, 64)),
        ("whisper-1500+4", WHISPER, mel(1, 4)),
        ("wav2vec2-4x1s", WAV2VEC, wave(4, 16000)),
        ("hubert-1x10s", HUBERT, wave(1, 160000)),
    ):
        yield Program(name, "bf16", forwarding(architecture, inputs), NEEDS)
