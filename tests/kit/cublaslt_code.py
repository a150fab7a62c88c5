"""GEMMs that take an algorithm of cuBLASLt, and their output code, generated where there is no GPU.

This module imports torch: only tests that need torch import it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._inductor import config as inductor_config

from gemmdb import Config
from gemmdb.cublaslt import launch, library
from gemmdb.cublaslt.matmul import MAX_WORKSPACE
from gemmdb.inductor.lower.adapter import cublaslt

VALUES = {
    "algo": 66, "tile": 601, "stages": 35, "split_k": 1, "reduction": 0, "swizzle": 0, "custom": 1, "inner": 0,
    "cluster": 2,
}  # fmt: skip
CONFIG = Config.of("cublaslt", "matmul", **VALUES)
BYTES = 1 << 20
M, N, K = 24, 256, 512


def linear(x: Any, w: Any) -> Any:
    return torch.mm(x, w.t())


def biased(b: Any, x: Any, w: Any) -> Any:
    return torch.addmm(b, x, w.t())


def inside(x: Any, w: Any) -> Any:
    return torch.mm(torch.narrow(x, 0, 8, M), torch.narrow(w, 1, 64, K).t())


def twice(x: Any, w: Any) -> Any:
    return torch.relu(torch.mm(torch.relu(torch.mm(x, w.t())), w.t()))


def integers(x: Any, w: Any) -> Any:
    return torch._int_mm(x, w.t())


def activated(b: Any, x: Any, w: Any) -> Any:
    return torch.mm(torch.relu(torch.addmm(b, x, w.t())), w)


def gelu(x: Any, w: Any) -> Any:
    return torch.mm(torch.nn.functional.gelu(torch.mm(x, w.t()), approximate="tanh"), w)


def scaled(x: Any, w: Any, s: Any, t: Any) -> Any:
    return torch._scaled_mm(x, w.t(), s, t, out_dtype=BF16)


def scaled_rows(x: Any, w: Any, s: Any, t: Any, b: Any) -> Any:
    """Computed scales, and a part of the bias."""
    return torch._scaled_mm(x, w.t(), s * 2, t, torch.narrow(b, 0, 8, N), out_dtype=BF16, use_fast_accum=True)


def scaled_blocks(x: Any, w: Any, s: Any, t: Any) -> Any:
    return torch._scaled_mm(x, w.t(), s.t(), t.t(), out_dtype=torch.float32)


BF16, INT8, FP8, FP32 = torch.bfloat16, torch.int8, torch.float8_e4m3fn, torch.float32
PROGRAMS: dict[str, tuple[Any, ...]] = {
    "mm": (linear, (M, K, BF16), (N, K, BF16)),
    "addmm": (biased, (N, BF16), (M, K, BF16), (N, K, BF16)),
    "full": (biased, (M, N, BF16), (M, K, BF16), (N, K, BF16)),
    "bmm": (torch.bmm, (4, M, K, BF16), (4, K, N, BF16)),
    "int_mm": (integers, (M, K, INT8), (N, K, INT8)),
    "scaled_mm": (scaled, (M, K, FP8), (N, K, FP8), (FP32,), (1, FP32)),
    "rows": (scaled_rows, (M, K, FP8), (N, K, FP8), (M, 1, FP32), (1, N, FP32), (N + 8, BF16)),
    "blocks": (scaled_blocks, (M, K, FP8), (N, K, FP8), (4, M, FP32), (2, 4, FP32)),
    "view": (inside, (M + 8, K, BF16), (N, 2 * K, BF16)),
    "twice": (twice, (M, K, BF16), (K, K, BF16)),
    "wide": (linear, (M, K, torch.float32), (N, K, torch.float32)),
}
ACTIVATIONS: dict[str, tuple[Any, ...]] = {
    "relu": (activated, (N, BF16), (M, K, BF16), (N, K, BF16)),
    "gelu_tanh": (gelu, (M, K, BF16), (N, K, BF16)),
}
SPACES: dict[str, int | None] = {"plain": 0, "split": BYTES, "large": MAX_WORKSPACE + 1, "unsupported": None}


@contextmanager
def needing(size: int | None) -> Iterator[None]:
    """The algorithm needs so many bytes; None: the library does not support it. None is loaded, also with torch's build
    for CUDA: its release would be in the code."""

    def asked(*_: object) -> int:
        if size is None:
            raise launch.Refused("not supported")
        return size

    with mock.patch.object(cublaslt, "workspace", asked), mock.patch.object(library, "loaded", return_value=None):
        yield


def partitioned(x: Any, w: Any) -> Any:
    """A CUDA graph cannot hold the copy to the CPU between the two GEMMs."""
    y = torch.mm(x, w.t())
    return torch.mm(y, w.t()), y.cpu()


def generated(wrapper: str) -> dict[str, Any]:
    """By program and workspace, with the wrapper in `python` or `cpp`: what was taken, why not what was asked, and the
    code. Called in a process that pretends to have a GPU."""
    from kit import no_gpu

    answers = {}
    with inductor_config.patch(cpp_wrapper=wrapper == "cpp"):
        for name, (program, *inputs) in PROGRAMS.items():
            for space, size in SPACES.items():
                if (space, wrapper) in (("plain", "python"), ("split", "python"), ("split", "cpp")) or name == "mm":
                    with needing(size):
                        code, events = no_gpu.output_code(program, CONFIG, *inputs)
                    seen = {(event.config, event.note) for event in events}
                    answers[f"{name} {space}"] = [*map(list, seen), code]
        for activation, (program, *inputs) in ACTIVATIONS.items():
            config = Config.of("cublaslt", "matmul_activation", activation=activation, **VALUES)
            with needing(0):
                code, events = no_gpu.output_code(program, config, *inputs)
            answers[activation] = [events[0].config == config.text, events[1].config, code]
    return answers


def generated_otherwise() -> dict[str, Any]:
    """Without cuBLASLt, and in parts. Called in such a process, too."""
    from kit import no_gpu

    code, events = no_gpu.output_code(linear, CONFIG, *PROGRAMS["mm"][1:])
    answers: dict[str, Any] = {"mm asked": [[events[0].config, events[0].note], code]}
    with needing(BYTES), inductor_config.patch({"triton.cudagraphs": True}):
        answers["partitions"], _ = no_gpu.output_code(partitioned, CONFIG, (M, K, BF16), (K, K, BF16))
    return answers


def code(answers: dict[str, Any], name: str, space: str = "plain") -> str:
    """The code of a program whose GEMMs all took the config."""
    seen, text = answers[f"{name} {space}"]
    assert seen == [CONFIG.text, ""]
    return str(text)


def lines(text: str, *parts: str) -> list[str]:
    """The lines that have all of the parts."""
    return [line.strip() for line in text.splitlines() if all(part in line for part in parts)]
