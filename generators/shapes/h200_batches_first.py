"""The first problems of the preset `h200-bmm`, from which tables were built in this order: experts of Mixtral (8 of
them), Llama 4 (16) and DeepSeek or Qwen MoE (64), attention that is written out, BERT, T5 and ViT, batched LoRA."""

from __future__ import annotations

from typing import Any

from gemmdb.generators.shapes.architectures import Item

_HALF, _FP32 = {"dtype": ["bf16", "fp16"]}, {"dtype": "fp32", "tf32": [False, True]}
_Sizes = int | list[int]


def _nt(batch: _Sizes, m: _Sizes, n: _Sizes, k: _Sizes, **rest: Any) -> Item:
    return {"op": "bmm", "batch": batch, "m": m, "n": n, "k": k, **rest}


def _nn(batch: _Sizes, m: _Sizes, n: _Sizes, k: _Sizes, **rest: Any) -> Item:
    return _nt(batch, m, n, k, layout="nn", **rest)


FIRST: list[Item] = [
    _nn(8, [1, 16, 64, 512], 14336, 4096),
    _nt(8, [1, 16, 128], 4096, 14336),
    _nn(16, [1, 32, 256], 16384, 5120),
    _nn(16, [1, 32, 256], 5120, 8192),
    _nt(64, [1, 8, 32, 128], 2816, 2048),
    _nt(64, [1, 8, 32, 128], 2048, 1408),
    _nt(64, [8, 128], 1408, 2048, fusion="pointwise"),
    _nt([32, 256], 512, 512, 64, **_HALF),
    _nn([32, 256], 512, 64, 512, **_HALF),
    _nt(512, 128, 128, 64, **_HALF),
    _nn(512, 128, 64, 128, **_HALF),
    _nt(64, 1024, 1024, 128),
    _nn(64, 1024, 128, 1024),
    _nt(32, 2048, 2048, 128),
    _nn(32, 2048, 128, 2048),
    _nt([32, 256], 1, 1024, 128),
    _nn([32, 256], 1, 128, 1024),
    _nt(96, 384, 384, 64, dtype="fp16"),
    _nn(96, 384, 64, 384, dtype="fp16"),
    _nt(96, 384, 384, 64, **_FP32),
    _nn(96, 384, 64, 384, **_FP32),
    _nt(192, 197, 197, 64, dtype="fp16"),
    _nn(192, 197, 64, 197, dtype="fp16"),
    _nn([16, 64], [1, 16], 16, 4096),
    _nn([16, 64], [1, 16], 4096, 16),
    _nt([12, 96, 384], 128, 128, 64, **_FP32),
    _nn([12, 96, 384], 128, 64, 128, **_FP32),
    _nt([12, 96], 512, 512, 64, **_FP32),
    _nn([12, 96], 512, 64, 512, **_FP32),
    _nt([16, 128], 256, 256, 64, **_FP32),
    _nn([16, 128], 256, 64, 256, **_FP32),
    _nt([12, 96], 197, 197, 64, dtype=["fp32", "bf16"]),
    _nn([12, 96], 197, 64, 197, dtype=["fp32", "bf16"]),
    _nt([12, 96], [64, 128, 256], [64, 128, 256], 64, **_HALF),
    _nn([12, 96], [64, 128, 256], 64, [64, 128, 256], **_HALF),
    _nt(32, [512, 1024], [512, 1024], 128, dtype=["bf16", "fp32"]),
    _nn(32, [512, 1024], 128, [512, 1024], dtype=["bf16", "fp32"]),
]
