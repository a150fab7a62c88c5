"""A problem set up on a GPU: operands at several addresses, the exact result, loaded candidates, and CUDA graphs of
their calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from gemmdb.generators.measure.correctness import Reference, reference
from gemmdb.generators.measure.cuda import elementwise
from gemmdb.generators.measure.cuda.calls import Call, Tensors, launcher
from gemmdb.generators.measure.cuda.measurer import Loaded
from gemmdb.generators.measure.literals import splits
from gemmdb.generators.measure.operands import DTYPES, Operands, operands
from gemmdb.generators.measure.program import as_product, output, set_numerics
from gemmdb.inductor.benchmark.timers import captured, cold_bytes
from gemmdb.inductor.benchmark.timers import elapsed as once
from gemmdb.kernels.config import Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import COPIED_BYTES, COPIES, Protocol

SEED = 2
WARMUP = 2
KEPT_BYTES, KEPT_SHARE = 6 * 2**30, 16
"""A new problem reuses the memory of earlier ones, unless they hold more bytes than this, or a larger part of the GPU's
memory: live tuning shares the GPU with a program."""
Graphs = dict[Config | None, list[torch.cuda.CUDAGraph]]


@dataclass
class Bench:
    """One problem set up for measuring. `graphs`: per protocol, each candidate's graph and, under None, the flush
    alone; for a grouped_mm, one graph per split. `count`: number of calls per graph, 0 until the first candidate, ATen,
    has run. `first`: the output and error of the first candidate, ATen, by copy.

    `copies` are equal operands and outputs at different addresses, which the calls of a graph use in turn: a buffer's
    address changes a kernel's time by up to a tenth, which is not a property of the kernel. `expected`: the exact
    result, for a grouped_mm one per split. The copies cycle through the splits.
    """

    problem: Problem
    copies: list[Tensors]
    expected: list[Reference]
    count: int = 0
    first: dict[int, tuple[torch.Tensor, float]] = field(default_factory=dict)
    calls: dict[Config, Call] = field(default_factory=dict)
    loaded: dict[Config, Loaded] = field(default_factory=dict)
    graphs: dict[str, Graphs] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem) -> Bench:
        """Return a bench with new operands in new memory, and set torch's precision switches for the problem."""
        # Another process shares this GPU. Freeing and getting sixty blocks takes a tenth of a second.
        if torch.cuda.memory_reserved() > min(KEPT_BYTES, torch.cuda.mem_get_info()[1] // KEPT_SHARE):
            torch.cuda.empty_cache()
        set_numerics(problem)
        device = torch.device("cuda")
        per_split = divided(problem, operands(problem, device, SEED))
        tensors = per_split[0].named
        tensors["out"] = output(problem, device)
        if problem.epilogue and problem.epilogue.kept:
            tensors["kept"] = torch.empty(problem.shapes[2], dtype=DTYPES[problem.out], device=device)
        count = COPIED_BYTES // max(sum(tensor.nbytes for tensor in tensors.values()), 1)
        copies = [tensors, *({n: moved(t) for n, t in tensors.items()} for _ in range(min(count, COPIES) - 1))]
        return cls(problem, _over(per_split, copies), [reference(problem, one) for one in per_split])

    def keep(self, configs: Sequence[Config]) -> None:
        """Drop all other candidates and free their memory."""
        for config in [config for config in self.calls if config not in configs]:
            del self.calls[config], self.loaded[config]
            for graphs in self.graphs.values():
                graphs.pop(config, None)

    def error(self, call: Call) -> float:
        """Return the error of runs into poisoned memory, on the first and the last copy, and on one copy per split. The
        first copy runs twice, since a run may leave scratch memory changed."""
        split_count, last = len(self.expected), len(self.copies) - 1
        errors: list[float] = []
        for index in dict.fromkeys((*range(split_count), last)):
            out = self.copies[index]["out"]
            for _ in range(1 if index else 2):
                out.fill_(float("nan") if out.is_floating_point() else torch.iinfo(out.dtype).min)
                made = call(index)
                if made is not None:
                    out.copy_(made)
            torch.cuda.synchronize()
            errors.append(self._error_of(index, out))
        return float(max(errors))

    def _error_of(self, index: int, out: torch.Tensor) -> float:
        """Return the error of an output on a copy. One with the bits of the first candidate's has its error: comparing
        bits takes a tenth of the time, and most of cuBLASLt's algorithms give the same."""
        if index in self.first and torch.equal(self.first[index][0], out):
            return self.first[index][1]
        error = float(self.expected[index % len(self.expected)].error(as_product(self.problem, out)))
        self.first.setdefault(index, (out.clone(), error))
        return error


def divided(problem: Problem, made: Operands) -> list[Operands]:
    """Return the operands with the offsets of each split of a grouped_mm; those of another op unchanged."""
    offsets = (torch.tensor(ends, dtype=torch.int32, device=made.a.device) for ends in splits(problem))
    return [replace(made, offsets=one) for one in offsets] or [made]


def _over(per_split: Sequence[Operands], copies: list[Tensors]) -> list[Tensors]:
    """Return the copies with the splits' offsets in turn, equally many per split: if there are too few copies, splits
    share one, otherwise the last few are dropped."""
    if len(per_split) == 1:
        return copies
    count = max(len(copies) // len(per_split), 1) * len(per_split)
    turns = ((copies[place % len(copies)], per_split[place % len(per_split)].offsets) for place in range(count))
    return [{**tensors, "offsets": offsets} for tensors, offsets in turns if offsets is not None]


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values with the same strides and alignment at another address."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.storage_offset()
    storage = torch.empty(start + extent, dtype=tensor.dtype, device=tensor.device)
    # Copy the memory with its gaps: a tensor that repeats elements cannot be written to.
    storage[start:].copy_(tensor.as_strided((extent,), (1,), start))
    return storage.as_strided(tensor.shape, tensor.stride(), start)


def capture(call: Call | None, protocol: Protocol, copies: int = 1, calls: int | None = None) -> torch.cuda.CUDAGraph:
    """Capture a graph of `calls` calls (default: the protocol's `unroll`) on the copies in turn, each after a flush
    unless the cache is hot. None stands for no call. With a hot cache, all calls use the same operands."""
    calls, hot = calls or protocol.unroll, protocol.l2 == "hot"
    flush = None if hot else _flush()

    def steps(count: int) -> None:
        for index in range(count):
            if flush is not None:
                flush()
            if call is not None:
                call(0 if hot else index % copies)

    stream = _capture_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        steps(min(WARMUP, calls))
        stream.synchronize()
        graph = captured(functools.partial(steps, calls))
    torch.cuda.current_stream().wait_stream(stream)
    return graph


def alive() -> bool:
    """Whether this process can still use the GPU."""
    try:
        torch.cuda.synchronize()
    except Exception:
        return False
    return True


def elapsed(graph: torch.cuda.CUDAGraph) -> float:
    """Return the microseconds of one replay."""
    return once(graph.replay)


@functools.cache
def _capture_stream() -> torch.cuda.Stream:
    # One for all captures: cuBLAS keeps a workspace per stream.
    return torch.cuda.Stream()


@functools.cache
def _flush() -> Callable[[], None]:
    """Return a function that flushes the current GPU's L2."""
    words = cold_bytes(torch.device("cuda")) // 4
    names = {"data": torch.zeros(words, dtype=torch.int32, device="cuda"), "sink": sink_buffer()}
    return launcher(elementwise.flush(words), names, {"elements": words})


@functools.cache
def sink_buffer() -> torch.Tensor:
    """Return one int32 that a read-only kernel may write."""
    return torch.zeros(1, dtype=torch.int32, device="cuda")
