"""Checks and times configs of one layer with one number of rows on the current GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from gemmdb.errors import GemmdbError
from gemmdb.generators.measure.cuda.bench import alive
from gemmdb.generators.vllm import kernels, operands
from gemmdb.generators.vllm.rows import Row
from gemmdb.generators.vllm_files import Tile
from gemmdb.inductor.benchmark.timers import in_turn, single_us
from gemmdb.inductor.benchmark.trial import preparation
from gemmdb.table import stats
from gemmdb.table.measurement import Protocol, Status, one_line

PROTOCOL = Protocol("graph", "cold", 10, 30, reference="vllm:current")
SAMPLE_US = 3000.0
FAR_SLOWER = 3.0
"""A config of which one call takes this many times as long as of vLLM's present one is not timed."""
MAX_ERROR, ERROR_MULTIPLE, LEAST_ERROR = 0.1, 1.5, 1e-3
"""Largest error of a correct result, and relative to that of vLLM's present config, if that is above LEAST_ERROR. The
activations of fp8 are quantized, at most twice, which costs a few percent."""


class BrokenContext(GemmdbError):
    """A config broke the GPU's context, so this process can use it no more. `row`: the config's."""

    def __init__(self, row: Row) -> None:
        what = f"M={row.m}: {row.tile.values} broke the GPU's context ({row.detail})"
        super().__init__(f"{what}; run the same command to continue without it")
        self.row = row


@dataclass
class Bench:
    """A `search.Timer`. `broken`: configs that broke the GPU's context in an earlier run. Raises GemmdbError if vLLM's
    present config fails."""

    kernel: kernels.Kernel
    m: int
    broken: frozenset[Tile] = frozenset()
    stream: torch.cuda.Stream = field(default_factory=torch.cuda.Stream)

    def __post_init__(self) -> None:
        self.current = self.kernel.current
        self.shared_bytes = int(torch.cuda.get_device_properties("cuda").shared_memory_per_block_optin)
        self._flush = preparation([()] * operands.COPIES, (), torch.device("cuda"))
        self._expected = self._run(self.current)
        self.usual_error = operands.error(self._expected[self.kernel.sample], self.kernel.exact)
        if not self.usual_error <= MAX_ERROR:
            raise GemmdbError(f"vLLM's present config {self.current.values} is off by {self.usual_error:.2g}")
        self._call_us = self._call_of(self.current)

    def time(self, tiles: Sequence[Tile], samples: int) -> list[Row]:
        """See `search.Timer`. The caches are cold before each call, as in gemmdb's tables."""
        kernels.compile_ahead(self.kernel.call(tile) for tile in tiles)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            rows = {tile: self._checked(tile) for tile in tiles}
            right = [tile for tile, row in rows.items() if row.status is Status.OK and tile != self.current]
            timed = (self.current, *right)
            taken = in_turn(
                self._flush, [self.kernel.call(tile) for tile in timed], operands.COPIES,
                replace(PROTOCOL, samples=samples), SAMPLE_US, lambda _: False,
            )  # fmt: skip
        for tile, own in zip(timed, taken, strict=True):
            if tile in rows and rows[tile].status is Status.OK:
                rows[tile] = replace(rows[tile], times=stats.times(own, taken[0]))
        return list(rows.values())

    def _run(self, tile: Tile) -> torch.Tensor:
        """Run a config on copy 0, in memory that cannot hold an earlier correct result."""
        device = torch.device("cuda")
        poison = [torch.full((self.m, self.kernel.exact.shape[1]), torch.nan, dtype=torch.bfloat16, device=device)]
        poison.append(poison[0].clone())
        del poison
        return self.kernel.call(tile)(0)

    def _call_of(self, tile: Tile) -> float:
        """Microseconds of the GPU for one call of vLLM, several kernels, whatever the host takes to launch them."""
        (us,) = single_us([lambda: self.kernel.call(tile)(1)])
        return us

    def _checked(self, tile: Tile) -> Row:
        """Run a config, which also compiles it, and compare its result with the exact one and, in all rows, with that
        of vLLM's present config."""
        row = Row(self.m, tile, Status.OK, current=tile == self.current)
        if tile in self.broken:
            return replace(row, status=Status.CRASH, detail="it broke the GPU's context before")
        try:
            found = self._run(tile)
            # Two correct results differ by the errors of both.
            off = max(
                operands.error(found[self.kernel.sample], self.kernel.exact), operands.error(found, self._expected) / 2
            )
            call_us = self._call_of(tile)
        except Exception as error:
            return self._failed(row, error)
        if off > min(MAX_ERROR, max(ERROR_MULTIPLE * self.usual_error, LEAST_ERROR)):
            return replace(row, status=Status.WRONG, error=off)
        if call_us > FAR_SLOWER * self._call_us and not row.current:
            return replace(row, status=Status.SLOW, error=off, detail=f"one call took {call_us:.0f} us")
        return replace(row, error=off)

    def _failed(self, row: Row, error: Exception) -> Row:
        """Return the row of a failure. Raises BrokenContext if the GPU's context is broken."""
        detail = one_line(f"{type(error).__name__}: {error}")[:200]
        if not alive():
            raise BrokenContext(replace(row, status=Status.CRASH, detail=detail)) from error
        oom = isinstance(error, torch.OutOfMemoryError)
        return replace(row, status=Status.OOM if oom else Status.ERROR, detail=detail)
