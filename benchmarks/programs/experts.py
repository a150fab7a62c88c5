"""Mixtures of experts of transformers."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.programs.decoders import NEEDS, SMALL, gated, widths
from benchmarks.programs.hugging import Architecture, decoding, forwarding, text
from benchmarks.programs.program import Program

FEW = {"num_local_experts": 4, "num_experts_per_tok": 2}
MIXTRAL = gated("Mixtral", {**widths(4096, 14336, 32, 8, 32000, layers=2), "num_local_experts": 8}, sliding_window=None)
QWEN3 = gated("Qwen3Moe", {**widths(2048, 6144, 32, 4, 151936, layers=3), "moe_intermediate_size": 768,
    "num_experts": 128, "num_experts_per_tok": 8}, head_dim=128)  # fmt: skip


def small(architecture: Architecture, **sizes: int) -> Architecture:
    """The same architecture with a tiny version of few experts."""
    return Architecture(
        architecture.config, architecture.model, architecture.gpu, {**SMALL, **sizes}, both=architecture.both
    )


def programs() -> Iterator[Program]:
    """All programs of this module."""
    mixtral = small(MIXTRAL, **FEW)
    qwen3 = small(QWEN3, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=16)
    # A token whose router is undecided goes to other experts in another precision.
    for name, make in (
        ("mixtral-4x32", forwarding(mixtral, text(4, 32, masked=True, use_cache=False))),
        ("mixtral-decode-4", decoding(mixtral, 4, 512)),
        ("qwen3-moe-4x128", forwarding(qwen3, text(4, 128, masked=True, use_cache=False, logits_to_keep=1))),
        ("qwen3-moe-decode-8", decoding(qwen3, 8, 512)),
    ):
        yield Program(name, "bf16", make, NEEDS, tolerance=0.2)
