"""`compare()`: times a whole program with and without gemmdb, side by side, and finds the GEMMs that cause a
slowdown."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch.utils import _pytree

from gemmdb.devices import load
from gemmdb.devices.load import Load
from gemmdb.errors import InputError, checks_arguments
from gemmdb.inductor.decide.session import ForcedSession, Session
from gemmdb.inductor.entry import active
from gemmdb.inductor.entry.backend import gemmdb
from gemmdb.inductor.entry.comparison import MIN_SLOWDOWN, Comparison
from gemmdb.inductor.entry.enable import install, policy_of
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.inductor.observe.stats import reset_stats, stats
from gemmdb.kernels.config import ATEN
from gemmdb.settings import DISABLED, Settings
from gemmdb.table.measurement import NOISY
from gemmdb.table.stats import Span, gain, span

QUIET_TIMEOUT_S = 15.0
"""Maximum seconds to wait for a quiet machine."""
WARMUP, REHEARSED = 2, 3
"""Calls that warm up, and calls whose median tells how long the timing takes."""
Spans = tuple[Span, Span]
Say = Callable[[str], None]


@checks_arguments
def compare(
    model: Callable[..., Any],
    *inputs: Any,
    calls: int = 50,
    kwargs: Mapping[str, Any] | None = None,
    say: Say = lambda text: None,
    wait_s: float | None = None,
    measures: Callable[[Load], bool] = lambda busy: True,
) -> Comparison:
    """Compile `model` with Inductor's default mode and with gemmdb (as enabled, else as the environment configures it).
    Time both on `inputs` alternately, `calls` times each, without gradients. This takes two compiles. If gemmdb is
    slower, it takes one more with ATen for all GEMMs and, if that is faster, one for each distinct problem that does
    not run ATen. The outputs are compared with the same random seed and on copies of the inputs, because a model may
    modify its inputs. Resets `stats()`.

    `inputs`: the arguments of `model`, or a single tuple or list of them. If a model's only argument is a list, wrap it
    in a tuple. `kwargs`: its keyword arguments. `say` is called with a short message at each step. `wait_s`: how many
    seconds to wait for a quiet machine, None for QUIET_TIMEOUT_S. `measures`: whether to time nevertheless if other
    programs still use it; if not, the result says so. Raises InputError for `calls` below 1, and while GEMMDB_DISABLE
    is set."""
    if calls < 1:
        raise InputError(f"compare: calls must be at least 1, got {calls!r}")
    if Settings.read().disabled:
        raise InputError(f"nothing can be compared while {DISABLED}")
    if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)):
        inputs = tuple(inputs[0])
    model = functools.partial(model, **kwargs) if kwargs else model
    before = copied(inputs)
    install()
    served = active.requested() or TableSession(policy_of(None, None, Settings.read()))
    with torch.no_grad():
        say("compiling without gemmdb, then with gemmdb")
        begun = time.monotonic()
        plain = _compile(model, inputs, ForcedSession(None))
        reset_stats()
        # What default mode compiled is in the compiler's cache by now.
        say(
            f"compiling with gemmdb, at most {_seconds(time.monotonic() - begun)}; then timing 2 x {calls} calls,"
            f" {_seconds(2 * (calls + WARMUP) * _call_s(plain, inputs))}"
        )
        begun = time.monotonic()
        ours = _compile(model, inputs, served)
        compile_s = time.monotonic() - begun
        products = stats()["products"]
        configs = {item["problem"]: str(item["config"]) for item in products}
        timing_s = (calls + WARMUP) * (_call_s(plain, inputs) + _call_s(ours, inputs))
        say(f"timing 2 x {calls} calls, {_seconds(timing_s)}")
        differ = any(one != ATEN.text for one in configs.values())
        limit_s = (QUIET_TIMEOUT_S if wait_s is None else wait_s) if differ else None
        spans, busy = _quietly(lambda: _timed(plain, ours, inputs, calls), say, limit_s, measures)
        found = _compared(spans, busy, configs, tuple(map(_brief, products)))
        if found.verdict == "slower":

            def lost_us(suspects: Collection[str]) -> float:
                one = "one GEMM" if len(suspects) == 1 else f"{len(suspects)} GEMMs"
                say(f"compiling and timing with ATen for {one}, {_seconds(compile_s + timing_s)}")
                spared = _compile(model, inputs, served.with_aten_for(suspects))
                with_, without_ = _timed(ours, spared, inputs, calls)
                certain = with_.low > without_.high and with_.us > MIN_SLOWDOWN * without_.us
                return with_.us - without_.us if certain else 0.0

            kernels = sum(one != ATEN.text for one in configs.values())
            most_s = (compile_s + timing_s) * (1 + kernels if kernels > 1 else 1)
            say(f"slower: finding the GEMMs that cause it, at most {_seconds(most_s)}")
            slower, together_us = _blamed([text for text, one in configs.items() if one != ATEN.text], lost_us)
            found = replace(found, slower=slower, together_us=together_us)
        default_output = output_of(plain, before)
        error = difference(default_output, output_of(ours, before))
        repeated = difference(default_output, output_of(plain, before)) if error else 0.0
        return replace(found, error=error, repeated=repeated)


def _compared(
    spans: Spans | None, busy: Load | None, configs: dict[str, str], products: tuple[dict[str, Any], ...]
) -> Comparison:
    """Return the comparison before the outputs are compared. `spans`: None if `busy` kept it from timing."""
    found = Comparison(math.nan, math.nan, 0.0, configs, {}, products=products, load=busy.others if busy else None)
    if spans is None:
        return replace(found, stopped=busy.text if busy else "")
    (default, with_gemmdb), gained = spans, gain(*spans)
    return replace(
        found, default_us=default.us, gemmdb_us=with_gemmdb.us, interval=(gained.low, gained.high),
        disturbed=_is_disturbed(default, busy),
    )  # fmt: skip


def _brief(product: Mapping[str, Any]) -> dict[str, Any]:
    """Return a product of `stats()` with the spread of its time and the sizes of its range instead of all evidence."""
    spread, sizes = product["evidence"].get("spread", 0.0), list(product["evidence"].get("sizes", ()))
    known = {name: value for name, value in product.items() if name != "evidence"}
    return {**known, "spread": spread if isinstance(spread, float) else 0.0, "sizes": sizes}


def _quietly(
    measure: Callable[[], Spans], say: Say, limit_s: float | None, measures: Callable[[Load], bool]
) -> tuple[Spans | None, Load | None]:
    """Return the result of `measure` and the machine's load during it. `limit_s`: how many seconds to wait while the
    machine is busy, None not to mind. If it still is then, `measures` says whether to measure nevertheless; if not,
    the result is None. If it became busy during the first measurement, measure again."""
    found: Spans | None = None
    busy: Load | None = None
    for _ in range(2):
        before = load.wait(limit_s or 0.0, say=lambda busy: say(f"waiting for a quiet machine: {busy.text}"))
        is_busy = before is not None and before.disturbs
        if before is not None and is_busy and limit_s is not None and not measures(before):
            return found, busy or before
        say("timing")
        start = load.reading()
        found = measure()
        busy = load.between(start, load.reading()) or before  # A short program ends before its load can be sampled.
        if busy is None or not busy.disturbs or limit_s is None or is_busy:
            break
    return found, busy


def _is_disturbed(default: Span, busy: Load | None) -> bool:
    return default.spread > NOISY or (busy is not None and busy.disturbs)


def _blamed(suspects: Sequence[str], lost_us: Callable[[Collection[str]], float]) -> tuple[dict[str, float], float]:
    """Return (microseconds lost to each GEMM that loses any, microseconds lost to all of them). `lost_us` returns the
    microseconds lost to some GEMMs; each call takes a compile."""
    together_us = lost_us(suspects) if suspects else 0.0
    if not together_us or len(suspects) == 1:
        return dict.fromkeys(suspects, together_us) if together_us else {}, together_us
    alone = {one: lost_us([one]) for one in suspects}
    return {one: lost for one, lost in alone.items() if lost}, together_us


def _compile(model: Any, inputs: Any, using: Session) -> Callable[..., Any]:
    """Compile `model` again with `using`. Functions compiled by earlier calls still work."""

    # Each compile has its own backend. With the same one, Dynamo would return its earlier compile of `model`.
    def backend(graph: Any, examples: Any) -> Any:
        return gemmdb(graph, examples)

    run: Callable[..., Any] = torch.compile(model, backend=backend, dynamic=False)
    with active.use(using):
        run(*inputs)
    return run


def _timed(first: Callable[..., Any], second: Callable[..., Any], inputs: Any, calls: int) -> Spans:
    """Time both alternately; the order flips each round."""
    times: tuple[list[float], list[float]] = ([], [])
    turns = list(zip((first, second), times, strict=True))
    for place in range(calls + WARMUP):
        for function, taken in reversed(turns) if place % 2 else turns:
            start = time.perf_counter()
            function(*inputs)
            _synchronize()
            taken.append((time.perf_counter() - start) * 1e6)
    return span(times[0][WARMUP:]), span(times[1][WARMUP:])


def _call_s(function: Callable[..., Any], inputs: Any) -> float:
    """Return the median seconds of a few calls."""
    taken = []
    for _ in range(REHEARSED):
        start = time.perf_counter()
        function(*inputs)
        _synchronize()
        taken.append(time.perf_counter() - start)
    return median(taken)


def _seconds(seconds: float) -> str:
    return f"about {seconds:.0f} s" if seconds >= 1 else "less than 1 s"


def _synchronize() -> None:
    # Even if no input is on a GPU: the model's parameters or tensors inside a container may be.
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def output_of(function: Callable[..., Any], inputs: Any) -> Any:
    """Call a compiled function on copies of its inputs with a fixed random seed and return its output."""
    # The other GPUs draw no random numbers, and reading their state would create contexts on them.
    with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_initialized() else []):
        torch.manual_seed(0)
        return function(*copied(inputs))


def copied(inputs: Any) -> Any:
    """Copy all tensors and keep their strides: different strides would trigger a recompile."""

    def copied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return value
        value = value.detach()
        if type(value) is not torch.Tensor:
            return value.clone()
        span = sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True)) + 1
        memory = value.as_strided((span if value.numel() else 0,), (1,)).clone()
        return memory.as_strided(value.shape, value.stride())

    return _pytree.tree_map(copied, inputs)


def difference(wanted: Any, found: Any) -> float:
    """Return the largest difference between two outputs, relative to the largest value in the tensor. Infinite if only
    one of them has a NaN or infinity at some position."""
    worst = 0.0
    for a, b in zip(_pytree.tree_leaves(wanted), _pytree.tree_leaves(found), strict=True):
        if isinstance(a, torch.Tensor) and a.numel():
            a, b = (torch.view_as_real(one.resolve_conj()) if one.is_complex() else one for one in (a, b))
            a, b = a.double(), b.double()
            same = (a == b) | (a.isnan() & b.isnan())
            off = (a - b).abs().masked_fill(same, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)
            scale = max(a.abs().nan_to_num(nan=0.0, posinf=0.0).max().item(), 1e-30)
            worst = max(worst, off.max().item() / scale)
    return worst
