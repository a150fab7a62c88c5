"""Tuning of one layer: times configs of vLLM's kernel for each number of rows, and writes its file. Needs a GPU."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import torch

from gemmdb.errors import GemmdbError, InputError
from gemmdb.generators import vllm_files
from gemmdb.generators.measure.cuda.bench import alive
from gemmdb.generators.vllm import kernels, operands
from gemmdb.generators.vllm.bench import PROTOCOL, SAMPLE_US, Bench, BrokenContext
from gemmdb.generators.vllm.layers import USUAL, Layer
from gemmdb.generators.vllm.rows import Record, Row, picks
from gemmdb.generators.vllm.search import FINALISTS, SAMPLES, search
from gemmdb.generators.vllm_files import Tile
from gemmdb.table.measurement import Status, one_line

FULL = "not enough GPU memory"
SEEDS = 3
"""Configs of the sizes before that are tried for the next."""
FULL_S = 1.5 * SAMPLES * (FINALISTS + 2) * SAMPLE_US * 1e-6
"""Seconds that the full times of a size take: of the finalists, the present config and the flush alone, with half as
much again for captures and checks."""
Say = Callable[[str, float | None], None]
"""Shows a step, and the expected seconds to the end of everything; None if unknown."""


@dataclass(frozen=True)
class Tuned:
    """What was done. `path`: vLLM's file, None if nothing was measured in full. `rows`: the file of rows beside it.
    `found`: the row of the config for each M that was measured, now or before. `left`: why other M were not.
    `seconds`: what it took."""

    path: Path | None
    rows: Path
    found: Mapping[int, Row]
    left: Mapping[int, str]
    seconds: float
    interrupted: bool = False


def tune(layer: Layer, sizes: Sequence[int], folder: Path, budget_s: float, say: Say) -> Tuned:
    """Time configs for each number of rows in `sizes`, and write vLLM's file and its rows into `folder`. What the rows
    hold already is not timed again. It takes at most about `budget_s` seconds, of which each size gets an equal share
    of what is left. After the first, none starts that would take longer than is left. On Ctrl-C, what is complete is
    written.

    In the file, the usual numbers of rows that were not measured keep vLLM's present config: vLLM takes the nearest
    number in the file, however far it is.

    Raises InputError without a GPU or vLLM; GemmdbError if a config breaks the GPU's context, or if vLLM does not read
    the file.
    """
    begin = monotonic()
    if not torch.cuda.is_available():
        raise InputError("this command needs an NVIDIA GPU that torch can use")
    say("importing vLLM", budget_s)
    device = torch.device("cuda", torch.cuda.current_device())
    versions = {**kernels.versions(layer, device), "protocol": PROTOCOL.text}
    name = layer.name(versions["device"])
    folder.mkdir(parents=True, exist_ok=True)
    record = Record(folder / name.text.replace(".json", ".rows.jsonl"), layer.described, versions)
    # A config that no file can have must not end it after the measuring.
    present = {m: kernels.present(layer, m) for m in {*USUAL, *sizes}}
    run = _Run(layer, record, begin + budget_s, say)
    interrupted = run.measure(sizes)
    found = picks(record.rows)
    path = None
    if found:
        tiles = present | {m: row.tile for m, row in found.items()}
        path = vllm_files.write(folder, name, tiles)
        kernels.check_readable(layer, folder, tiles)
    reason = "interrupted" if interrupted else "the budget ended"
    left = {m: run.failed.get(m, reason) for m in sizes if m not in found}
    return Tuned(path, record.path, found, left, monotonic() - begin, interrupted)


@dataclass
class Deadline:
    """Ends a search: calls return whether another step will probably be over at `until`, if it takes as long as the
    last one, since `last`."""

    until: float
    last: float = field(default_factory=monotonic)

    def __call__(self) -> bool:
        now = monotonic()
        step, self.last = now - self.last, now
        return now + step <= self.until


@dataclass
class _Run:
    """Measures sizes of a layer until `until`. `failed`: why sizes could not be measured."""

    layer: Layer
    record: Record
    until: float
    say: Say
    failed: dict[int, str] = field(default_factory=dict)

    def measure(self, sizes: Sequence[int]) -> bool:
        """Measure what the record lacks. Return whether it was interrupted."""
        known = picks(self.record.rows)
        missing = [m for m in sizes if m not in known]
        try:
            weights = self._weights() if missing else []
            seeds, shortest_s = list[Tile](), math.inf
            for place, m in enumerate(missing):
                begun = monotonic()
                left_s = self.until - begun
                if place and left_s < shortest_s:  # One is measured in any case, so that every run gets further.
                    break
                self.say(f"{place + len(sizes) - len(missing)}/{len(sizes)} sizes, M={m}", left_s)
                rows = self._search(weights, m, seeds, begun + left_s / (len(missing) - place) - FULL_S)
                self.record.add(rows)
                seeds = list(dict.fromkeys([*(row.tile for row in picks(rows).values()), *seeds]))[:SEEDS]
                shortest_s = min(shortest_s, monotonic() - begun)
                gc.collect()  # Graphs hold memory of their own.
                torch.cuda.empty_cache()
        except KeyboardInterrupt:
            return True
        return False

    def _weights(self) -> list[operands.Weight]:
        device = torch.device("cuda", torch.cuda.current_device())
        try:
            return [operands.weight(one, self.layer.fp8, device) for one in self.layer.weights]
        except torch.OutOfMemoryError as error:
            raise GemmdbError("the layer's weights do not fit into the GPU's free memory") from error

    def _search(self, weights: list[operands.Weight], m: int, seeds: list[Tile], until: float) -> list[Row]:
        """Return the rows of one size; none if vLLM's present config cannot be measured, which `failed` explains."""
        device = torch.device("cuda", torch.cuda.current_device())
        broken = frozenset(row.tile for row in self.record.rows if row.m == m and row.status is Status.CRASH)
        try:
            bench = Bench(kernels.kernel(self.layer, weights, m, device), m, broken)
        except InputError:
            raise
        except Exception as error:
            if not alive():
                raise GemmdbError(f"M={m}: vLLM's present config broke the GPU's context") from error
            full = isinstance(error, torch.OutOfMemoryError)
            self.failed[m] = FULL if full else one_line(f"vLLM's present config fails: {error}")[:200]
            return []
        try:
            return search(self.layer, m, bench, seeds, Deadline(until))
        except torch.OutOfMemoryError:
            self.failed[m] = FULL
            return []
        except BrokenContext as error:
            self.record.add([error.row])
            raise
