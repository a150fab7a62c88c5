"""List the rivals, and why one cannot run here.

    python -m benchmarks.peers rivals

Each is a package to install beside gemmdb, none of which gemmdb needs. Versions that fit torch 2.11 with CUDA 13:
vllm 0.26.0 (only its library `_C_stable_libtorch.abi3.so` is loaded), deep_gemm as vllm 0.26.0 holds it, gemlite
0.6.0.post2, humming-kernels 0.1.20, quack-kernels 0.6.5 with nvidia-cutlass-dsl 4.8.1.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WEIGHTS = ("int4", "int8-weight")
FP8 = ("fp8-row", "fp8-tensor", "fp8-block")
ALL = (*WEIGHTS, *FP8, "int8", "bf16", "grouped", "grouped-fp8")


@dataclass(frozen=True)
class Rival:
    """A rival: the ops that it has, and where its adapter is, `module:function`. `package`: what must be installed;
    empty for torch alone. `exact`: the adapter of its more exact mode, which runs where the usual one is further off
    than the tolerance. `compiles`: it compiles kernels on the spot, which `measure` does in advance. `slow`: it takes
    about a minute per problem, so that it runs only if it is asked for."""

    name: str
    ops: tuple[str, ...]
    adapter: str
    package: str = ""
    exact: str = ""
    compiles: bool = False
    slow: bool = False

    @property
    def missing(self) -> str:
        """Why it cannot run, empty if it can."""
        return f"{self.package} is not installed" if self.package and not _found(self.package) else ""

    @property
    def version(self) -> str:
        """The version of its package."""
        try:
            return importlib.metadata.version(DISTRIBUTIONS.get(self.package, self.package or "torch"))
        except importlib.metadata.PackageNotFoundError:
            return "unknown"

    def load(self) -> Callable[[Any], Any]:
        """Its adapter, a function of a Case. Raises ImportError."""
        module, _, name = self.adapter.partition(":")
        found: Callable[[Any], Any] = getattr(importlib.import_module(f"benchmarks.peers.{module}"), name)
        return found


DISTRIBUTIONS = {"humming": "humming-kernels", "quack": "quack-kernels", "deep_gemm": "deep-gemm"}
"""The distribution names of packages whose module has another name."""
RIVALS = (
    Rival("deepgemm", ("fp8-block", "bf16"), "deepgemm:dense", "deep_gemm", compiles=True),
    Rival("deepgemm-contiguous", ("grouped",), "deepgemm:contiguous", "deep_gemm", compiles=True),
    Rival("deepgemm-masked", ("grouped",), "deepgemm:masked", "deep_gemm", compiles=True),
    Rival("vllm-marlin", WEIGHTS, "vllm_kernels:marlin", "vllm"),
    Rival("vllm-machete", WEIGHTS, "vllm_kernels:machete", "vllm"),
    Rival("vllm-cutlass", (*FP8, "int8"), "vllm_kernels:scaled", "vllm"),
    Rival("vllm-cutlass-grouped", ("grouped-fp8",), "vllm_kernels:grouped", "vllm"),
    Rival("humming", WEIGHTS, "jit_kernels:humming", "humming", compiles=True),
    Rival("tinygemm", ("int4",), "torch_kernels:tinygemm"),
    Rival("cublas", ALL, "torch_kernels:cublas"),
    Rival("cublaslt-best", ("bf16",), "torch_kernels:cublaslt"),
    Rival("gemlite", WEIGHTS, "triton_kernels:gemlite", "gemlite", "triton_kernels:gemlite_exact", compiles=True),
    Rival("quack", ("bf16",), "quack_kernels:dense", "quack", slow=True),
    Rival("quack-split-k", ("bf16",), "quack_kernels:split_k", "quack", slow=True),
    Rival("quack-grouped", ("grouped",), "quack_kernels:grouped", "quack", slow=True),
    Rival("max-autotune", ALL, "triton_kernels:autotune", slow=True),
)
"""In the order in which they run: the strongest first."""
LEFT_OUT = {
    "Marlin, the original": "its kernels fail on Hopper with an illegal instruction; vLLM's descendant runs instead",
    "sgl-deep-gemm 0.2.5, sglang-kernel 0.4.9": "built for a newer torch: they need symbols that torch 2.11 lacks",
    "vLLM's AllSpark": "vLLM runs it on compute capability 8.0 to 8.9 only",
    "FlashInfer": "its GEMMs for Hopper are DeepGEMM's and TensorRT-LLM's, compiled from 700 MB of sources",
    "Helion": "it tunes each size for minutes, and ships no GEMM kernel",
    "vLLM's fused_moe in Triton, sonic-moe": "whole expert layers: routing and activation cannot be taken out",
}
"""Rivals without an adapter, with the reason."""


def wanted(op: str, slow: bool, names: str | None = None) -> list[Rival]:
    """The rivals of an op. `names`: only these."""
    chosen = names.split(",") if names else None
    found = [one for one in RIVALS if op in one.ops and (slow or not one.slow)]
    return [one for one in found if chosen is None or one.name in chosen]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The tool has no options."""


def main(_: argparse.Namespace) -> None:
    """Print the list."""
    for one in RIVALS:
        print(f"{one.name:<22}{one.missing or one.version:<28}{', '.join(one.ops)}{' (slow)' if one.slow else ''}")
    for name, reason in LEFT_OUT.items():
        print(f"{name}: {reason}")


def _found(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
