"""What vLLM's files of configs are for: a layer of experts, or an fp8 linear with block scales."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gemmdb.errors import InputError
from gemmdb.generators.vllm_files import Name
from gemmdb.key.ops import SCALE_BLOCK

USUAL = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
"""The numbers of rows in vLLM's own files."""
BLOCK = (SCALE_BLOCK, SCALE_BLOCK)
MAX_SIZE = 2**20


@dataclass(frozen=True)
class Experts:
    """Experts on one GPU: gate and up projection, SiLU, down projection, as vLLM's fused MoE computes them.

    `experts`: their number; `top_k`: how many each token goes to; `hidden`: the size of a token; `intermediate`: the
    columns of the gate. `fp8`: fp8 weights with scales of 128 x 128, and activations quantized on the fly; else bf16.
    Raises InputError for sizes that vLLM's kernel does not take.
    """

    experts: int
    top_k: int
    hidden: int
    intermediate: int
    fp8: bool = False

    def __post_init__(self) -> None:
        _check({"experts": self.experts, "top-k": self.top_k, "hidden": self.hidden, "intermediate": self.intermediate})
        if self.top_k > self.experts:
            raise InputError(f"--top-k {self.top_k}: there are {self.experts} experts")
        for name, size in (("hidden", self.hidden), ("intermediate", self.intermediate)):
            if self.fp8 and size % SCALE_BLOCK:
                raise InputError(f"--{name} {size}: fp8 needs a multiple of {SCALE_BLOCK}")

    @property
    def described(self) -> dict[str, Any]:
        """The layer, JSON-ready."""
        return {"kind": "experts", **asdict(self)}

    @property
    def weights(self) -> list[tuple[int, ...]]:
        """Sizes of the weights: gate and up [experts, 2 intermediate, hidden], down [experts, hidden, intermediate]."""
        up, down = (2 * self.intermediate, self.hidden), (self.hidden, self.intermediate)
        return [(self.experts, *up), (self.experts, *down)]

    def name(self, device: str) -> Name:
        """The file for this layer on a GPU, by torch's name of it."""
        if self.fp8:
            return Name(device, self.intermediate, experts=self.experts, dtype="fp8_w8a8", block=BLOCK)
        return Name(device, self.intermediate, experts=self.experts)

    def rows(self, tokens: int) -> float:
        """The mean number of rows of an expert that has some."""
        return max(tokens * self.top_k / self.experts, 1.0)


@dataclass(frozen=True)
class Linear:
    """An fp8 linear with an [n, k] weight and scales of 128 x 128. Raises InputError for sizes without whole blocks
    along k."""

    n: int
    k: int
    fp8 = True

    def __post_init__(self) -> None:
        _check({"n": self.n, "k": self.k})
        if self.k % SCALE_BLOCK:
            raise InputError(f"--k {self.k}: block scales need a multiple of {SCALE_BLOCK}")

    @property
    def described(self) -> dict[str, Any]:
        """The layer, JSON-ready."""
        return {"kind": "linear", **asdict(self)}

    @property
    def weights(self) -> list[tuple[int, ...]]:
        """Sizes of the weight."""
        return [(self.n, self.k)]

    def name(self, device: str) -> Name:
        """The file for this layer on a GPU, by torch's name of it."""
        return Name(device, self.n, k=self.k, dtype="fp8_w8a8", block=BLOCK)

    def rows(self, tokens: int) -> float:
        """The rows of its GEMM."""
        return float(tokens)


Layer = Experts | Linear


def _check(sizes: dict[str, int]) -> None:
    for name, size in sizes.items():
        if not 0 < size <= MAX_SIZE:
            raise InputError(f"--{name} {size}: a size from 1 to {MAX_SIZE:,}")
