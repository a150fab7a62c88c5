"""Tuning of one layer: times configs of vLLM's kernel for each number of rows, and writes its file. Needs a GPU."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic

import torch

from gemmdb.errors import GemmdbError, InputError
from gemmdb.generators import vllm_files
from gemmdb.generators.measure.cuda.bench import alive
from gemmdb.generators.vllm import kernels, operands
from gemmdb.generators.vllm.layers import Layer
from gemmdb.generators.vllm.rows import Record, Row, picks
from gemmdb.generators.vllm.search import search
from gemmdb.generators.vllm_files import Tile
from gemmdb.inductor.benchmark.timers import Call, cold_bytes, in_turn
from gemmdb.table import stats
from gemmdb.table.measurement import Protocol, Status, one_line

PROTOCOL = Protocol("graph", "cold", 10, 30, reference="vllm:current")
SAMPLE_US = 3000.0
MAX_ERROR, ERROR_MULTIPLE = 0.1, 1.5
"""Largest error of a correct result, and relative to that of vLLM's present config. The activations are quantized to
fp8, at most twice, which costs a few percent."""


@dataclass(frozen=True)
class Tuned:
    """What was written. `path`: vLLM's file, None if nothing was measured in full. `rows`: the rows beside it.
    `faster`: the speedup over vLLM's present config by M, where another one is written. `left`: the M not measured."""

    path: Path | None
    rows: Path
    faster: dict[int, float]
    left: tuple[int, ...]


def tune(
    layer: Layer, sizes: Sequence[int], folder: Path, minutes: float | None, say: Callable[[str], None]
) -> Tuned:  # fmt: skip
    """Time configs for each number of rows in `sizes`, and write vLLM's file and its rows into `folder`. What the rows
    hold already is not timed again. After `minutes`, no new work starts, and what is complete is written.

    Raises InputError without a GPU or vLLM; GemmdbError if a config breaks the GPU's context.
    """
    if not torch.cuda.is_available():
        raise InputError("tuning for vLLM needs an NVIDIA GPU that torch can use")
    device = torch.device("cuda", torch.cuda.current_device())
    versions = kernels.versions(device)
    name = layer.name(versions["device"])
    folder.mkdir(parents=True, exist_ok=True)
    rows = folder / name.text.replace(".json", ".rows.jsonl")
    record = Record(rows, {"kind": type(layer).__name__.lower(), **asdict(layer)}, versions)
    until = None if minutes is None else monotonic() + 60 * minutes
    _measure(layer, [m for m in sizes if m not in picks(record.read())], record, until, say)
    known = record.read()
    found = {m: tile for m, tile in picks(known).items() if m in sizes}
    path = vllm_files.write(folder, name, found) if found else None
    faster = {row.m: 1 / row.times.ratio for row in known if row.times and _chosen(row, found)}
    return Tuned(path, rows, faster, tuple(m for m in sizes if m not in found))


def _chosen(row: Row, found: dict[int, Tile]) -> bool:
    return row.status is Status.OK and not row.current and found.get(row.m) == row.tile


def _measure(
    layer: Layer, sizes: Sequence[int], record: Record, until: float | None, say: Callable[[str], None]
) -> None:  # fmt: skip
    device = torch.device("cuda", torch.cuda.current_device())
    weights = [operands.weight(one, layer.fp8, device) for one in operands.sizes(layer)] if sizes else []
    seeds: list[Tile] = []
    for m in sizes:
        if until is not None and monotonic() > until:
            return
        say(f"M={m}")
        broken = {row.tile for row in record.read() if row.m == m and row.status is Status.CRASH}
        try:
            timer = Bench(kernels.kernel(layer, weights, m, device), m, record, frozenset(broken))
        except torch.OutOfMemoryError:
            say(f"M={m}: not enough memory")
            continue
        rows = search(layer, m, timer, seeds, lambda: until is None or monotonic() < until)
        record.add(rows)
        seeds = list(dict.fromkeys([*picks(rows).values(), *seeds]))[:3]
        del timer
        gc.collect()  # Graphs hold memory of their own.
        torch.cuda.empty_cache()


@dataclass
class Bench:
    """A Timer on the current GPU. `broken`: configs that broke the GPU's context in an earlier run."""

    kernel: kernels.Kernel
    m: int
    record: Record
    broken: frozenset[Tile]
    stream: torch.cuda.Stream = field(default_factory=torch.cuda.Stream)

    def __post_init__(self) -> None:
        self.current = self.kernel.current
        self.shared_bytes = int(torch.cuda.get_device_properties("cuda").shared_memory_per_block_optin)
        self._buffer = torch.zeros(cold_bytes(torch.device("cuda")) // 4, dtype=torch.int32, device="cuda")
        self._sink = torch.zeros((), dtype=torch.int32, device="cuda")
        self._usual = operands.error(self.kernel.call(self.current)(0), self.kernel.exact)

    def time(self, tiles: Sequence[Tile], samples: int) -> list[Row]:
        """See `search.Timer`. The caches are cold before each call, as in gemmdb's tables."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            rows = {tile: self._checked(tile) for tile in tiles}
            right = [tile for tile, row in rows.items() if row.status is Status.OK and tile != self.current]
            calls: list[Call] = [self.kernel.call(tile) for tile in (self.current, *right)]
            taken = in_turn(
                self._flush, calls, operands.COPIES, self._protocol(samples), SAMPLE_US, lambda _: False
            )  # fmt: skip
        for tile, own in zip((self.current, *right), taken, strict=True):
            row = rows.get(tile)
            if row is not None and row.status is Status.OK:
                times = stats.times(own, taken[0])
                rows[tile] = Row(self.m, tile, Status.OK, times, row.error, tile == self.current)
        return list(rows.values())

    def _protocol(self, samples: int) -> Protocol:
        return Protocol(PROTOCOL.clock, PROTOCOL.l2, PROTOCOL.unroll, samples, PROTOCOL.reference)

    def _flush(self, _: int) -> None:
        torch.amax(self._buffer, 0, out=self._sink)

    def _checked(self, tile: Tile) -> Row:
        """Run a config once on each copy, which also compiles it, and compare the first result."""
        if tile in self.broken:
            return Row(self.m, tile, Status.CRASH, detail="it broke the GPU's context before")
        try:
            results = [self.kernel.call(tile)(index) for index in range(operands.COPIES)]
            off = operands.error(results[0], self.kernel.exact)
        except Exception as error:
            detail = one_line(f"{type(error).__name__}: {error}")[:200]
            if not alive():
                self.record.add([Row(self.m, tile, Status.CRASH, detail=detail)])
                what = f"M={self.m}: {tile.values} broke the GPU's context"
                raise GemmdbError(f"{what}; run the same command to continue without it") from error
            oom = isinstance(error, torch.OutOfMemoryError)
            return Row(self.m, tile, Status.OOM if oom else Status.ERROR, detail=detail)
        right = off <= min(MAX_ERROR, max(ERROR_MULTIPLE * self._usual, 1e-3))
        return Row(self.m, tile, Status.OK if right else Status.WRONG, error=off, current=tile == self.current)
