"""The program of `benchmarks.torch frozen`: pieces of a Llama-shaped model, as a server compiles them. Imports torch.

Each piece is compiled on its own: decode steps at several batch sizes, what lies between two attentions with a symbolic
number of rows, as serving engines cut a decoder, and a linear layer with int8 weights.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from benchmarks.programs import figures, timing
from benchmarks.torch import llama

SHAPES = {
    "full": (llama.Shape(layers=2), 512),
    "tiny": (llama.Shape(hidden=64, heads=4, key_heads=2, head=16, feed=96, vocabulary=128, layers=1), 32),
}
"""The sizes of the model and of its cache, by size of the program."""
SECONDS = 2.0
"""Of timing for each size of a piece."""
Inputs = tuple[Tensor, ...]


MAX_ROWS = 512
"""The most rows of the symbolic piece."""


@dataclass(frozen=True)
class Piece:
    """One compiled module. `kind`: `decode`, `between` or `int8`. `rows`: those that are timed, the first of them to
    compile with; several make the number symbolic."""

    name: str
    kind: str
    rows: tuple[int, ...]

    @property
    def symbolic(self) -> bool:
        """Whether the number of rows is symbolic."""
        return len(self.rows) > 1


PIECES = {
    one.name: one
    for one in (
        Piece("decode-1", "decode", (1,)),
        Piece("decode-16", "decode", (16,)),
        Piece("symbolic", "between", (64, 8, 256)),
        Piece("int8", "int8", (4,)),
    )
}


def made(piece: Piece, size: str, device: str) -> tuple[nn.Module, list[Inputs]]:
    """The module of a piece with random weights, and its inputs at each size, the first to compile with."""
    torch.manual_seed(0)
    shape, context = SHAPES[size]
    if piece.kind == "decode":
        run = llama.Run(piece.rows[0], context, "bf16", device)
        return llama.Decoder(shape, run).eval(), [llama.inputs(shape, run, 1)]
    if piece.kind == "int8":
        return llama.ScaledAfter(shape.feed, shape.hidden, device).eval(), [
            (_normal(piece.rows[0], shape.hidden, device),)
        ]
    widths = (shape.heads * shape.head, shape.hidden)
    inputs = [tuple(_normal(rows, width, device) for width in widths) for rows in piece.rows]
    for tensor in inputs[0]:
        torch._dynamo.mark_dynamic(tensor, 0, min=1, max=MAX_ROWS)
    return llama.Piece(shape, "bf16", device).eval(), inputs


def _normal(rows: int, width: int, device: str) -> Tensor:
    return torch.randn(rows, width, device=device).to(torch.bfloat16)


def start(names: Sequence[str], size: str, with_gemmdb: bool, deterministic: Sequence[bool]) -> dict[str, Any]:
    """Compile pieces in this process as a server does at its start. Returns the seconds of their first calls with
    gemmdb's import, the digest of each piece's code, the code, and what was timed."""
    device = ready()
    counters.clear()  # What was timed so far is not frozen.
    began = time.perf_counter()
    if with_gemmdb:
        import gemmdb.inductor

        gemmdb.inductor.enable()
    found: dict[str, Any] = {"enabling_s": time.perf_counter() - began, "seconds": {}, "digests": {}, "codes": {}}
    for strict in deterministic:
        torch.use_deterministic_algorithms(strict)
        for name in names:
            label = f"{name}, deterministic" if strict else name
            code, found["seconds"][label] = first_call(PIECES[name], size, device)
            found["digests"][label] = hashlib.sha256(code.encode()).hexdigest()
            found["codes"][label] = code
    found["compile_s"] = found["enabling_s"] + sum(found["seconds"].values())
    return {**found, "timings": timings(), **(statistics() if with_gemmdb else {})}


def ready() -> str:
    """The device, after what every process pays once for its first compile."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.compile(lambda t: t + 1)(torch.ones(8, device=device))
    import torch._inductor.config as config

    # Where weights are constants, gemmdb has kernels for a CPU.
    config.freezing = device == "cpu"
    return device


def first_call(piece: Piece, size: str, device: str) -> tuple[str, float]:
    """The code of a piece without what is a path or an address, and the seconds of its first call."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    module, inputs = made(piece, size, device)
    run = torch.compile(module)
    with torch.no_grad():
        waited(device)
        began = time.perf_counter()
        _, codes = run_and_get_code(run, *inputs[0])
        waited(device)
        seconds = time.perf_counter() - began
        for more in inputs[1:]:  # A symbolic number of rows must not compile again.
            with torch.compiler.set_stance("fail_on_recompile"):
                run(*more)
    return normalised("".join(codes)), seconds


def normalised(code: str) -> str:
    """Generated code without the number of its graph, the folders of its caches and addresses in comments."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    code = code.replace(cache_dir(), "CACHE")
    return re.sub(r"^# AOT ID.*$|  # device.*$| at 0x[0-9a-f]+", "", code, flags=re.MULTILINE)


def timings() -> dict[str, int]:
    """How often Inductor has timed anything in this process, launch configurations of its kernels included. It also
    counts kernels that it stores with a graph, `triton_bundler_save_static_autotuner`, which times nothing."""
    names = ("benchmark", "autotune", "coordesc")
    found = {key: int(value) for key, value in counters["inductor"].items() if any(name in key for name in names)}
    return {key: value for key, value in found.items() if not key.startswith("triton_bundler")}


def statistics() -> dict[str, Any]:
    """What gemmdb did: its benchmarks, errors and tables, and how many GEMMs each outcome has."""
    import gemmdb.inductor

    stats = gemmdb.inductor.stats()
    outcomes: dict[str, int] = {}
    for one in stats["products"]:
        outcomes[one["outcome"]] = outcomes.get(one["outcome"], 0) + one["count"]
    return {
        "benchmarked": stats["benchmarked"], "errors": stats["errors"], "frozen": stats["frozen"],
        "outcomes": outcomes, "gemmdb_s": stats["seconds"],
    }  # fmt: skip


def gain(name: str, size: str, deterministic: bool, pins: Path) -> dict[str, Any]:
    """Microseconds of one piece in default mode, with gemmdb's defaults and frozen, by number of rows: the
    medians, and the ratios of the rounds between the ends of their 95% intervals."""
    device, piece = ready(), PIECES[name]
    torch.use_deterministic_algorithms(deterministic)
    module, inputs = made(piece, size, device)
    ways: Mapping[str, Mapping[str, Any]] = {
        "default": {}, "gemmdb": {"backend": "gemmdb"},
        "frozen": {"backend": "gemmdb", "options": {"gemmdb.frozen": str(pins)}},
    }  # fmt: skip
    compiled = {way: torch.compile(module, **how) for way, how in ways.items()}
    found: dict[str, Any] = {"us": {}, "speedup": {}, "configs": {}}
    with torch.no_grad():
        for way, run in compiled.items():
            forget(way)
            run(*inputs[0])
            found["configs"][way] = served(way)
        for index, one in enumerate(inputs):
            taken = timing.in_turn({way: captured(run, one, device) for way, run in compiled.items()}, SECONDS, device)
            label = str(piece.rows[index])
            found["us"][label] = {way: sorted(times)[len(times) // 2] for way, times in taken.items()}
            found["speedup"][label] = {
                f"{way}/{over}": figures.gain({"taken": taken}, way, over)
                for way, over in (("gemmdb", "default"), ("frozen", "default"), ("frozen", "gemmdb"))
            }
    return found


def forget(way: str) -> None:
    """Drop what gemmdb has counted, before the compile of a way."""
    if way != "default":
        import gemmdb.inductor

        gemmdb.inductor.reset_stats()


def served(way: str) -> dict[str, str]:
    """The config of each GEMM since `forget`."""
    if way == "default":
        return {}
    import gemmdb.inductor

    return {one["problem"]: one["config"] for one in gemmdb.inductor.stats()["products"]}


def captured(run: Callable[..., Any], inputs: Inputs, device: str) -> timing.Run:
    """A call as it is timed: a CUDA graph, or on a CPU the call itself."""

    def call() -> Any:
        return run(*inputs)

    return call if device == "cpu" else timing.capture(call)


def waited(device: str) -> None:
    """Wait for the GPU, if there is one."""
    if device != "cpu":
        torch.cuda.synchronize()
