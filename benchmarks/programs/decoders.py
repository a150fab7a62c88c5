"""Decoders of transformers: decode steps with a static cache, and prefills."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from benchmarks.programs.hugging import Architecture, decoding, forwarding, text
from benchmarks.programs.program import Program

NEEDS = ("transformers",)
SMALL = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 1, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 320}  # fmt: skip
NO_TOKENS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
"""The special tokens of a published vocabulary may lie outside the tiny one."""


def widths(hidden: int, feed: int, heads: int, keys: int, vocabulary: int, layers: int = 4) -> dict[str, Any]:
    """The sizes of a decoder as its config names them."""
    return {"hidden_size": hidden, "intermediate_size": feed, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": keys, "vocab_size": vocabulary}  # fmt: skip


def gated(name: str, gpu: dict[str, Any], attention: str = "sdpa", **both: Any) -> Architecture:
    """A decoder in the manner of Llama."""
    both = {**NO_TOKENS, "max_position_embeddings": 4096, "tie_word_embeddings": False, **both}
    return Architecture(f"{name}Config", f"{name}ForCausalLM", gpu, SMALL, attention, both)


LLAMA = gated("Llama", widths(4096, 14336, 32, 8, 128256), rope_parameters={"rope_type": "default", "rope_theta": 5e5})
QWEN2 = gated("Qwen2", widths(3584, 18944, 28, 4, 152064))
QWEN3 = gated("Qwen3", widths(4096, 12288, 32, 8, 151936), head_dim=128)
PHI3 = gated("Phi3", widths(3072, 8192, 32, 32, 32064), sliding_window=None)
GEMMA = gated("Gemma", widths(2048, 16384, 8, 1, 256000), head_dim=256, tie_word_embeddings=True)
GEMMA2 = gated("Gemma2", widths(2304, 9216, 8, 4, 256000), "eager", head_dim=256, tie_word_embeddings=True)
MISTRAL = gated("Mistral", widths(4096, 14336, 32, 8, 32768), sliding_window=None)
GPT2 = Architecture(
    "GPT2Config", "GPT2LMHeadModel",
    {"n_embd": 1600, "n_head": 25, "n_layer": 6, "vocab_size": 50257},
    {"n_embd": 64, "n_head": 4, "n_layer": 1, "vocab_size": 320}, both=NO_TOKENS,
)  # fmt: skip
OPT = Architecture(
    "OPTConfig", "OPTForCausalLM",
    {"hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 6, "num_attention_heads": 32, "vocab_size": 50272,
     "word_embed_proj_dim": 2048},
    {"hidden_size": 64, "ffn_dim": 160, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 320,
     "word_embed_proj_dim": 64},
    both={**NO_TOKENS, "pad_token_id": 1},
)  # fmt: skip


def named(architecture: Architecture, **sizes: Any) -> Architecture:
    """The same architecture with other sizes of the version for a GPU."""
    return dataclasses.replace(architecture, gpu={**architecture.gpu, **sizes})


def programs() -> Iterator[Program]:
    """All programs of this module."""
    yield from (_decode(*case) for case in (
        ("llama", LLAMA, 1, 1024), ("llama", LLAMA, 16, 1024), ("qwen2", QWEN2, 4, 1024), ("qwen3", QWEN3, 8, 1024),
        ("phi3", PHI3, 4, 512), ("gemma", GEMMA, 1, 512), ("mistral", MISTRAL, 32, 512), ("opt", OPT, 8, 512),
        ("gpt2", GPT2, 2, 512), ("llama", LLAMA, 32, 1024), ("llama", LLAMA, 64, 1024), ("llama", LLAMA, 128, 1024),
    ))  # fmt: skip
    yield from (_prefill(*case) for case in (
        ("llama", LLAMA, 1, 1024), ("qwen2", QWEN2, 1, 300), ("qwen3", QWEN3, 2, 512), ("gemma2", GEMMA2, 1, 777),
        ("gpt2", GPT2, 4, 512), ("opt", OPT, 1, 96), ("llama", LLAMA, 1, 2048),
    ))  # fmt: skip


def _decode(name: str, architecture: Architecture, rows: int, context: int) -> Program:
    return Program(f"{name}-decode-{rows}", "bf16", decoding(architecture, rows, context), NEEDS)


def _prefill(name: str, architecture: Architecture, rows: int, length: int) -> Program:
    inputs = text(rows, length, masked=True, use_cache=False, logits_to_keep=1)
    return Program(f"{name}-prefill-{rows}x{length}", "bf16", forwarding(architecture, inputs), NEEDS)
