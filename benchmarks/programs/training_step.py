"""The models and the step of `training`. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.programs.building import making, noise, stirred, tokens
from benchmarks.programs.program import Built, Compile, Step

RATE = 1e-6
"""Small: a graph is replayed thousands of times, and its weights must stay finite."""

TOKENS = {"gpt2-2x100": (2, 100), "gemma2-1x64": (1, 64)}
"""Rows and tokens of small steps, which the host bounds; others have four rows of 512."""


class Block(nn.Module):
    """Attention and a feed-forward with GELU, both after a normalisation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """`x` [rows, tokens, width]."""
        heads = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(found.transpose(1, 2).flatten(2))
        return x + self.feed(self.between(x))


class Blocks(nn.Module):
    """Blocks between an embedding and logits; returns the mean loss of the next tokens."""

    def __init__(self, width: int, heads: int, layers: int, vocabulary: int, checkpointed: bool) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.logits = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """`ids` [rows, tokens]."""
        x = self.embedding(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return F.cross_entropy(self.logits(x[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())


def of_blocks(checkpointed: bool, size: str, device: str) -> Built:
    """A step of Blocks."""
    width, heads, layers, vocabulary = (1024, 16, 4, 32000) if size == "gpu" else (64, 4, 1, 320)
    with making(device, torch.float32):
        model = Blocks(width, heads, layers, vocabulary, checkpointed)
    ids = tokens(vocabulary, *((8, 512) if size == "gpu" else (2, 16)), device=device)
    return of_loss(stirred(model), lambda run: run(ids), device)


def of_transformers(name: str, size: str, device: str) -> Built:
    """A step of a model that computes its loss itself."""
    from benchmarks.programs import decoders, encoders, vision

    architecture = {"llama-checkpointed": decoders.named(decoders.LLAMA, num_hidden_layers=2, vocab_size=32000),
                    "bert": encoders.bert("sdpa"), "vit": vision.VIT,
                    "gpt2-2x100": decoders.named(decoders.GPT2, n_embd=768, n_head=12),
                    "gemma2-1x64": decoders.named(decoders.GEMMA2, vocab_size=32000)}[name]  # fmt: skip
    model = architecture.made(size, device).float().train()
    if getattr(model, "loss_type", None) is None:
        model.loss_type = "ForCausalLM"  # GPT-2 has none; then transformers warns in each step, which breaks the graph.
    small = size == "tiny"
    if name == "vit":
        inputs = {"pixel_values": noise(*((2, 3, 32, 32) if small else (32, 3, 224, 224)), device=device).float()}
        inputs["labels"] = tokens(2, len(inputs["pixel_values"]), device=device)
        # Else the first step sets it, and the second is compiled again.
        model.config.problem_type = "single_label_classification"
    else:
        rows, length = (2, 16) if small else TOKENS.get(name, (4, 512))
        ids = tokens(model.config.vocab_size, rows, length, device=device)
        inputs = {"input_ids": ids, "labels": ids}
    if name.endswith("checkpointed"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
        inputs["use_cache"] = False
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0  # Masks differ between the ways, and so would the gradients.
    return of_loss(model, lambda run: run(**inputs).loss, device)


def of_loss(model: nn.Module, loss_of: Callable[[Any], Tensor], device: str) -> Built:
    """One step with AdamW: the loss and all gradients. `loss_of`: calls the model, compiled or not, on its inputs."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True, capturable=device != "cpu")
    began = {name: value.detach().clone() for name, value in model.state_dict().items()}
    used = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def trained(run: Any, autocast: bool) -> list[Tensor]:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=autocast):
            loss = loss_of(run)
        loss.backward()
        optimizer.step()
        return [loss.detach(), *(one.grad for one in used if one.grad is not None)]

    def step(compile: Compile) -> Step:
        run = compile(model)
        return lambda: trained(run, True)

    def reset() -> None:
        model.load_state_dict(began)
        optimizer.zero_grad(set_to_none=True)

    return Built(step, lambda: trained(model, False), reset)
