"""`compare()`: times a whole program with and without gemmdb, side by side, and finds the GEMMs that cost the time."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree

from gemmdb.devices import load
from gemmdb.devices.load import Load
from gemmdb.errors import InputError
from gemmdb.inductor.decide.session import ForcedSession, Session
from gemmdb.inductor.entry import active
from gemmdb.inductor.entry.backend import gemmdb
from gemmdb.inductor.entry.comparison import MIN_SLOWDOWN, Comparison
from gemmdb.inductor.entry.enable import install, policy_of
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.inductor.observe.stats import reset_stats, stats
from gemmdb.kernels.config import ATEN
from gemmdb.settings import Settings
from gemmdb.table.measurement import NOISY
from gemmdb.table.stats import Span, gain, span

QUIET_TIMEOUT_S = 15.0
"""The most seconds to wait for a quiet machine."""
Spans = tuple[Span, Span]
Say = Callable[[str], None]


def compare(
    model: Callable[..., Any],
    *inputs: Any,
    calls: int = 50,
    kwargs: Mapping[str, Any] | None = None,
    say: Say = lambda text: None,
) -> Comparison:
    """Compile `model` with Inductor's default and with gemmdb (as enabled, else as the environment says). Time both on
    `inputs` in turns, `calls` times each, without gradients. Takes two compiles. If gemmdb turns out slower, it takes
    one more with ATen for all GEMMs, and if that is faster, one for each distinct problem with another kernel. The
    outputs are compared for the same random numbers and for copies of the inputs, because a model may change its
    inputs. Resets `stats()`.

    `inputs`: the arguments of `model`, or one tuple or list of them. So if the only argument of a model is a list, wrap
    it in a tuple. `kwargs`: its keyword arguments. `say` is told, in a phrase, what begins. Raises InputError
    for `calls` below 1."""
    if calls < 1:
        raise InputError(f"compare: calls must be at least 1, got {calls!r}")
    if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)):
        inputs = tuple(inputs[0])
    model = functools.partial(model, **kwargs) if kwargs else model
    before = copied(inputs)
    install()
    served = active.requested() or TableSession(policy_of(None, None, Settings.read()))
    with torch.no_grad():
        say("compiling as without gemmdb, to be followed by the same with gemmdb")
        begun = time.monotonic()
        plain = _compile(model, inputs, ForcedSession(None))
        reset_stats()
        say(f"compiling with gemmdb, about {time.monotonic() - begun:.0f} s as without it")
        ours = _compile(model, inputs, served)
        products = stats()["products"]
        configs = {item["problem"]: str(item["config"]) for item in products}
        begun = time.monotonic()
        ours(*inputs)
        _synchronize()
        say(f"2 x {calls} calls to be timed, about {2 * (calls + 2) * (time.monotonic() - begun):.0f} s")
        differ = any(one != ATEN.text for one in configs.values())
        (default, with_gemmdb), busy = _quietly(lambda: _timed(plain, ours, inputs, calls), say, differ)
        brief = tuple({name: value for name, value in one.items() if name != "evidence"} for one in products)
        gained = gain(default, with_gemmdb)
        found = Comparison(
            default.us, with_gemmdb.us, 0.0, configs, {}, 0.0, brief,
            (gained.low, gained.high), busy.others if busy else None, _is_disturbed(default, busy),
        )  # fmt: skip
        if found.verdict == "slower":

            def lost_us(suspects: Collection[str]) -> float:
                say("compiling with ATen for " + ("one GEMM" if len(suspects) == 1 else f"{len(suspects)} GEMMs"))
                spared = _compile(model, inputs, served.with_aten_for(suspects))
                with_, without_ = _timed(ours, spared, inputs, calls)
                certain = with_.low > without_.high and with_.us > MIN_SLOWDOWN * without_.us
                return with_.us - without_.us if certain else 0.0

            slower, together_us = _blamed([text for text, one in configs.items() if one != ATEN.text], lost_us)
            found = replace(found, slower=slower, together_us=together_us)
        return replace(found, error=difference(output_of(plain, before), output_of(ours, before)))


def _quietly(measure: Callable[[], Spans], say: Say, patient: bool) -> tuple[Spans, Load | None]:
    """What `measure` returns, and the load meanwhile. If it is `patient`, it waits on a busy machine, and measures a
    second time if the machine became busy during the first."""
    limit_s = QUIET_TIMEOUT_S if patient else 0.0
    for _ in range(2):
        before = load.wait(limit_s, say=lambda busy: say(f"waiting for a quiet machine: {busy.text}"))
        say("timing")
        start = load.reading()
        found = measure()
        busy = load.between(start, load.reading()) or before  # A short program is over before its load can be told.
        if busy is None or not busy.disturbs or not patient or (before is not None and before.disturbs):
            break
    return found, busy


def _is_disturbed(default: Span, busy: Load | None) -> bool:
    return default.spread > NOISY or (busy is not None and busy.disturbs)


def _blamed(suspects: Sequence[str], lost_us: Callable[[Collection[str]], float]) -> tuple[dict[str, float], float]:
    """(the microseconds that each GEMM costs, without those that cost nothing; what all cost together). `lost_us`:
    what some GEMMs cost, which takes a compile to find out."""
    together_us = lost_us(suspects) if suspects else 0.0
    if not together_us or len(suspects) == 1:
        return dict.fromkeys(suspects, together_us) if together_us else {}, together_us
    alone = {one: lost_us([one]) for one in suspects}
    return {one: lost for one, lost in alone.items() if lost}, together_us


def _compile(model: Any, inputs: Any, using: Session) -> Callable[..., Any]:
    """`model`, compiled again with `using`. Compiled functions of earlier calls still work."""

    # Each compile has its own backend. With the same one, Dynamo would return its earlier compile of `model`.
    def backend(graph: Any, examples: Any) -> Any:
        return gemmdb(graph, examples)

    run: Callable[..., Any] = torch.compile(model, backend=backend, dynamic=False)
    with active.use(using):
        run(*inputs)
    return run


def _timed(first: Callable[..., Any], second: Callable[..., Any], inputs: Any, calls: int) -> Spans:
    """Both in turns, each first in every second round."""
    times: tuple[list[float], list[float]] = ([], [])
    turns = list(zip((first, second), times, strict=True))
    for place in range(calls + 2):
        for function, taken in reversed(turns) if place % 2 else turns:
            start = time.perf_counter()
            function(*inputs)
            _synchronize()
            taken.append((time.perf_counter() - start) * 1e6)
    # the first calls warm up
    return span(times[0][2:]), span(times[1][2:])


def _synchronize() -> None:
    # Also when no input is a tensor on a GPU: the model's parameters may be, or tensors inside a container.
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def output_of(function: Callable[..., Any], inputs: Any) -> Any:
    """The output of a compiled function for copies of its inputs, with the same random seed."""
    # The other GPUs draw no random numbers, and reading their state would create contexts on them.
    with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_initialized() else []):
        torch.manual_seed(0)
        return function(*copied(inputs))


def copied(inputs: Any) -> Any:
    """Copies of all tensors, with the same strides: other strides would cause another compile."""

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
    """The largest difference of two outputs, relative to the largest value of its tensor. It is infinite if only one
    of them has a NaN or an infinity at some place."""
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
