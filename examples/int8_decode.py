"""Decoding with int8 weights: a small language model whose weights are int8, with one scale per output channel.

    python examples/int8_decode.py

gemmdb looks up `linear(x, w.to(x.dtype)) * s` as one `mixed_mm`, before Inductor's own patterns match it. Expect two
GEMMs per decode step and the same tokens as eager decoding. The step is compiled once for all tokens.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

import gemmdb.inductor

VOCABULARY, WIDTH = 512, 256


class Int8Linear(nn.Module):
    """A linear whose weight [columns, depth] is int8."""

    def __init__(self, columns: int, depth: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (columns, depth), dtype=torch.int8))
        self.register_buffer("scale", (torch.rand(columns) / depth).to(torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.to(x.dtype)) * self.scale


class Decoder(nn.Module):
    """Logits of the next token from the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, dtype=torch.bfloat16)
        self.hidden, self.logits = Int8Linear(WIDTH, WIDTH), Int8Linear(VOCABULARY, WIDTH)

    def forward(self, token: Tensor) -> Tensor:
        x = self.embedding(token)
        return self.logits(x + torch.relu(self.hidden(x)))


def decode(step: nn.Module, length: int = 8) -> list[int]:
    """Greedy decoding from token 1."""
    tokens = [1]
    for _ in range(length):
        logits = step(torch.tensor([tokens[-1]], device=device))
        logits[:, tokens] = -torch.inf  # no token twice
        tokens.append(int(logits.argmax()))
    return tokens


device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = Decoder().to(device).eval()
with torch.no_grad():
    expected, tokens = decode(model), decode(torch.compile(model, backend="gemmdb"))
for product in gemmdb.inductor.stats()["products"]:
    print(f"{product['rung']}  {product['config']}  {product['problem']}")
print("eager tokens:   ", *expected)
print("compiled tokens:", *tokens)
