"""A trial of cuBLASLt's algorithms: ATen's call and the algorithms, on the same random operands in this process.

Nothing is compiled. First, all candidates get a short estimate: single calls, timed between two events. For a short
GEMM that is too long, differently for each kernel. So the best few are timed in CUDA graphs, a few rounds in turn. Then
ATen and the best of these are timed in turn, as in any trial: CUDA graphs, the weight cold, the activation in the
cache.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from statistics import median
from typing import Any

import torch

from gemmdb.cublaslt import library
from gemmdb.cublaslt.launch import call_torch
from gemmdb.cublaslt.library import Algorithm
from gemmdb.cublaslt.matmul import MAX_NAMED, MAX_WORKSPACE, Matmul
from gemmdb.cublaslt.shape import Shape, leading, shape_of
from gemmdb.inductor.benchmark import limits, trial
from gemmdb.inductor.benchmark.limits import EXTENTS, Extent
from gemmdb.inductor.benchmark.tensors import differ, inputs
from gemmdb.inductor.benchmark.timers import Call, Prepare, in_turn, single_us
from gemmdb.inductor.benchmark.trial import MIN_ROUNDS, Untimed, noisy
from gemmdb.inductor.lower.adapter import emission
from gemmdb.inductor.match.extract import TORCH
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.cublaslt import attributes
from gemmdb.kernels.menus.cublaslt_nearby import around, heuristic
from gemmdb.key.problem import Problem
from gemmdb.phases import PHASES

BEST = 2
"""How many of the algorithms that were estimated first are varied."""
LOAD_S = 0.1
"""After this many seconds, no further kernel is loaded for an estimate. The first call of a kernel loads its code: 3 ms
per candidate in a new process, 0.4 ms where the kernels are loaded (benchmarks/results/h200/search.json)."""
ESTIMATES, ESTIMATE_S, LEAST = 3, 0.03, 6
"""Number of calls per estimate; fewer if the estimates would take longer than ESTIMATE_S seconds together, and then
fewer candidates, but at least as many as LEAST."""
FINALISTS, CLOSE = 6, 1.05
"""Maximum number of algorithms timed in CUDA graphs, and their maximum estimate relative to ATen's. The best algorithm
is always timed."""
ROUNDS, ROUND_SAMPLE_US = 3, 500.0
"""Number of rounds in which these are compared, and the maximum time of the calls in one of their graphs."""
LAST = 2
"""Maximum number of algorithms timed against ATen, in samples of their own: the best of many is too fast by chance."""
FINAL_SAMPLE_US = 1000.0
"""Maximum time of the calls in one CUDA graph."""
FASTER, FUTILE = 1.02, 1.01
"""ATen's time relative to the best algorithm's: above FASTER in each of the minimum of rounds, or below FUTILE in the
median of them, it is settled which is faster. On 43 recorded searches this saves 41% of the rounds, and no median comes
to the other side of FASTER (benchmarks/results/h200/search.json, search-short.json)."""
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "mm": torch.mm, "addmm": torch.addmm, "bmm": torch.bmm, "int_mm": torch._int_mm, "scaled_mm": torch._scaled_mm
}  # fmt: skip
_IN_PLACE: Mapping[str, Callable[[torch.Tensor], Any]] = {
    "relu": torch.relu_, "gelu_tanh": functools.partial(torch.ops.aten.gelu_, approximate="tanh")
}  # fmt: skip


@dataclass(frozen=True)
class Operands:
    """The operands of a GEMM without an epilogue, or with an `activation` that cuBLASLt computes. `fakes`: A, B and the
    `extras` of its shape, as in the program; `warm`: which of them are in the cache."""

    problem: Problem
    fakes: tuple[torch.Tensor, ...]
    warm: tuple[bool, ...]
    activation: str = ""

    @property
    def device(self) -> torch.device:
        """The GPU that they are on."""
        return self.fakes[0].device

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for operands that the same calls accept in the same time."""
        places = ((tuple(one.shape), one.stride(), one.storage_offset() * one.itemsize % 16) for one in self.fakes)
        return self.problem.text, self.activation, self.device, self.warm, *places

    @property
    def shape(self) -> Shape:
        """The shape that cuBLASLt multiplies."""
        problem, (a, b) = self.problem, self.fakes[:2]
        apart = (a.stride(0), b.stride(0)) if problem.batch > 1 else (0, 0)
        by_rows = problem.b.layout.order.startswith("row")
        of_a = leading(a.shape, a.stride(), problem.a.row_major)
        shape = shape_of(problem, of_a, leading(b.shape, b.stride(), by_rows), apart)
        return replace(shape, activation=self.activation)

    def output(self) -> torch.Tensor:
        """Return an uninitialized output."""
        return torch.empty(self.problem.shapes[2], dtype=TORCH[self.problem.out], device=self.device)


@dataclass(frozen=True)
class Race:
    """Samples in microseconds per call, taken in turn: `aten`, with torch's kernel for the activation, and the best
    algorithms. `wrong`: algorithms whose result differed from ATen's."""

    aten: Sequence[float]
    finalists: Mapping[Config, Sequence[float]]
    wrong: Sequence[Config] = ()


@PHASES("trial")
def race(
    operands: Operands, proposed: Sequence[Config], allowed: Callable[[Config], bool], extent: Extent = EXTENTS[0]
) -> Race:  # fmt: skip
    """Time the algorithms that cuBLASLt's heuristic and `proposed` name and that `allowed` accepts. Raises Untimed
    without any, or without enough memory."""
    with emission.real_tensors(), torch.cuda.device(operands.device):
        output_bytes = operands.problem.batch * operands.problem.m * operands.problem.n * 4
        trial.check_memory(operands.fakes, output_bytes, operands.device)
        stream = trial.stream_of(torch.cuda.current_device())
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found = _race(operands, proposed, allowed, extent)
        torch.cuda.current_stream().wait_stream(stream)
    return found


def finalists(estimates: Mapping[Config, float]) -> list[Config]:
    """Return the algorithms to time against ATen, best first. `estimates`: microseconds by config, with ATen's."""
    order = sorted((us, config.text, config) for config, us in estimates.items() if config != ATEN)
    close = [config for us, _, config in order if us <= CLOSE * estimates[ATEN]]
    return close[:FINALISTS] or [config for _, _, config in order[:1]]


def promising(estimates: Mapping[Config, float]) -> bool:
    """Return whether some algorithm may be faster than ATen, so that others which resemble it may be, too."""
    return min(us for config, us in estimates.items() if config != ATEN) < estimates[ATEN]


def settled(aten: Sequence[float], best: Sequence[float]) -> bool:
    """Return whether enough rounds say that the best algorithm is faster than ATen, or that it gains too little."""
    if len(aten) < MIN_ROUNDS or noisy(aten, best):
        return False
    ratios = [theirs / ours for theirs, ours in zip(aten, best, strict=True)]
    return min(ratios) > FASTER or median(ratios) < FUTILE


def last(ranked: Sequence[Config]) -> list[Config]:
    """Return the algorithms to time against ATen, of those that are ranked by a few rounds: the best LAST, and the best
    that does not split K. Where no CUDA graph captures a short GEMM, a split may take the host too long."""
    whole = next((config for config in ranked if config.values["split_k"] == 1), None)
    return list(dict.fromkeys((*ranked[:LAST], *([whole] if whole is not None else ()))))


def _race(
    operands: Operands, proposed: Sequence[Config], allowed: Callable[[Config], bool], extent: Extent
) -> Race:  # fmt: skip
    copies = [inputs(operands.fakes) for _ in range(trial.copies_of(operands.fakes))]
    output = operands.output()
    aten = functools.partial(_call_aten, operands, copies, output)
    aten(0)  # It also loads the library.
    if library.loaded() is None:
        raise Untimed("torch has loaded no cuBLASLt")
    algorithms = _Algorithms(operands, copies, output)
    prepare = trial.preparation(copies, operands.warm, operands.device)
    calls = algorithms.loaded(filter(allowed, _alternating(algorithms.suggested(), proposed)), extent.candidates)
    if not calls:
        raise Untimed("cuBLASLt has no algorithm for it")
    estimates = _estimates({ATEN: aten, **calls}, prepare)
    around = algorithms.near(estimates) if extent.nearby and promising(estimates) else []
    if more := algorithms.loaded((one for one in around if one not in calls and allowed(one)), extent.nearby):
        calls |= more
        estimates |= _estimates({ATEN: aten, **more}, prepare)
    best = _ranked({config: calls[config] for config in finalists(estimates)}, prepare, len(copies))
    wrong = _wrong(best, {ATEN: aten, **calls}, output)
    if operands.activation:
        # A maximum loses what is not a number, unless it takes care.
        copies[0][0][0, 0] = float("nan")
        wrong += _wrong((one for one in best if one not in wrong), {ATEN: aten, **calls}, output)
        copies[0][0][0, 0] = 0
    right = last([config for config in best if config not in wrong])
    if not right:
        return Race((), {}, wrong)
    until = limits.now() + extent.final_s  # Once there is the minimum number of rounds.

    def enough(samples: Sequence[Sequence[float]]) -> bool:
        late = len(samples[0]) >= MIN_ROUNDS and limits.now() > until
        return late or settled(samples[0], min(samples[1:], key=median))

    timed: list[Call] = [aten, *(calls[config] for config in right)]
    first, *others = in_turn(prepare, timed, len(copies), trial.GPU, FINAL_SAMPLE_US, enough)
    return Race(first, dict(zip(right, others, strict=True)), wrong)


def _ranked(calls: Mapping[Config, Call], prepare: Prepare, copies: int) -> list[Config]:
    """Return the configs by their median of a few rounds, fastest first."""
    if len(calls) <= LAST:
        return list(calls)

    def enough(samples: Sequence[Sequence[float]]) -> bool:
        return len(samples[0]) == ROUNDS

    samples = in_turn(prepare, list(calls.values()), copies, trial.GPU, ROUND_SAMPLE_US, enough)
    us = {config: median(found) for config, found in zip(calls, samples, strict=True)}
    return sorted(us, key=us.__getitem__)


def _alternating(suggested: Sequence[Config], proposed: Sequence[Config]) -> Iterator[Config]:
    """Yield from both lists in turn: the time may not suffice for all. On 418 explored problems (H100), the best of the
    first eight is 1.2% slower than the best known, and 2.6% if these are the heuristic's."""
    yield from (one for pair in zip_longest(suggested, proposed) for one in pair if one is not None)


class _Algorithms:
    """The algorithms of the library for operands on the current device and stream, which all write one `output`."""

    def __init__(self, operands: Operands, copies: Sequence[Sequence[torch.Tensor]], output: torch.Tensor) -> None:
        self._matmul = Matmul(operands.shape, torch.cuda.current_device())
        self._copies, self._output = copies, output
        # The same memory in every call: another address needs another descriptor, whose time does not count.
        self._extras = [one.data_ptr() for one in copies[0][2:]]
        self._workspace = torch.empty(MAX_WORKSPACE, dtype=torch.uint8, device=operands.device)
        self._stream = torch.cuda.current_stream().cuda_stream

    def suggested(self) -> list[Config]:
        """Return the algorithms of cuBLASLt's heuristic, in its order."""
        return heuristic(self._matmul, MAX_NAMED)

    def near(self, estimates: Mapping[Config, float]) -> list[Config]:
        """Return algorithms that resemble the best, as many for each of them."""
        best = sorted((config for config in estimates if config != ATEN), key=estimates.__getitem__)[:BEST]
        return list(around(best, lambda one: self._supported(one) is not None))

    def loaded(self, configs: Iterable[Config], most: int) -> dict[Config, Call]:
        """Return the calls of the algorithms that the library supports for the operands, at most `most`, and no more
        than can be loaded within LOAD_S seconds. Each has run once."""
        until, found = limits.now() + LOAD_S, dict[Config, Call]()
        for config in dict.fromkeys(configs):
            if len(found) == most or limits.now() > until:
                break
            algorithm = self._supported(config)
            if algorithm is not None:
                with contextlib.suppress(library.Error):
                    self._call(algorithm, 0)
                    found[config] = functools.partial(self._call, algorithm)
        return found

    def _supported(self, config: Config) -> Algorithm | None:
        try:
            algorithm, needed = self._matmul.supported(attributes(config))
            return algorithm if needed <= MAX_WORKSPACE else None
        except library.Error:
            return None

    def _call(self, algorithm: Algorithm, index: int) -> None:
        a, b = self._copies[index][:2]
        self._matmul.run(
            algorithm, a.data_ptr(), b.data_ptr(), self._output.data_ptr(), self._workspace.data_ptr(), MAX_WORKSPACE,
            self._stream, *self._extras,
        )  # fmt: skip


def _estimates(calls: Mapping[Config, Call], prepare: Prepare) -> dict[Config, float]:
    """Return the shortest time of a few calls of each, in microseconds."""
    before = functools.partial(prepare, 0)
    pair_s = sum(single_us([before, functools.partial(calls[ATEN], 0)])) / 1e6
    most = int(ESTIMATE_S / pair_s)
    calls = dict(islice(calls.items(), max(most, LEAST)))
    rounds = max(1, min(ESTIMATES, most // len(calls)))
    us = single_us([functools.partial(call, 0) for call in calls.values()], rounds, before)
    return dict(zip(calls, us, strict=True))


def _wrong(configs: Iterable[Config], calls: Mapping[Config, Call], output: torch.Tensor) -> list[Config]:
    """Return the configs whose result differs from ATen's."""
    wanted = _result(calls[ATEN], output)
    return [config for config in configs if differ([_result(calls[config], output)], [wanted])]


def _result(call: Call, output: torch.Tensor) -> torch.Tensor:
    """Return what a call writes."""
    output.fill_(float("nan") if output.is_floating_point() else 0)
    call(0)
    return output.clone()


def _call_aten(operands: Operands, copies: Sequence[Sequence[torch.Tensor]], output: torch.Tensor, index: int) -> None:
    a, b, *extras = copies[index]
    call_torch(_FUNCTIONS[operands.problem.op], operands.shape, a, b, extras, output)
    if operands.activation:
        _IN_PLACE[operands.activation](output)
