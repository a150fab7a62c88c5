"""The regression guard: a whole program with and without gemmdb, side by side, and which products cost the time."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gemmdb.devices import load
from gemmdb.devices.load import Load
from gemmdb.errors import InputError
from gemmdb.hit import Hit
from gemmdb.inductor.entry import session, session_factory
from gemmdb.inductor.entry import ways_in as entry
from gemmdb.inductor.entry.backend import gemmdb
from gemmdb.inductor.observe import journal
from gemmdb.inductor.observe.outputs import answer, copied, difference
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Query
from gemmdb.settings import Settings
from gemmdb.table.measurement import NOISY
from gemmdb.table.stats import Gain, Span, gain, span

SLOWER = 1.01
"""From this ratio to default mode on, `compare` looks for the slow products. A smaller ratio is noise."""
PATIENCE_S = 15.0
"""The most seconds to wait for a quiet machine."""
Spans = tuple[Span, Span]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Comparison:
    """`default_us`, `gemmdb_us`: median microseconds of one call; the two take turns. `error`: `difference` of the
    outputs. `configs`: the lowered configs, by problem text. `slower`: by problem text, how many microseconds the model
    gains when that product goes back to ATen; empty unless gemmdb is slower. `together_us`: what it gains when all
    products go back to ATen, 0 if gemmdb is not slower or its kernels are not the reason. `products`: those of
    `stats()`, without the evidence. `interval`: that of the gain. `load`: how many cores other processes kept busy
    meanwhile, None if unknown; `disturbed`: too many, or the times of default mode were unsteady."""

    default_us: float
    gemmdb_us: float
    error: float
    configs: dict[str, str]
    slower: dict[str, float]
    together_us: float = 0.0
    products: tuple[dict[str, Any], ...] = ()
    interval: tuple[float, float] | None = None
    load: float | None = None
    disturbed: bool = False

    @property
    def speedup(self) -> float:
        """The speedup of gemmdb over Inductor's default mode."""
        return self.default_us / self.gemmdb_us

    @property
    def kernels(self) -> int:
        """How many distinct products run another kernel than ATen's."""
        return sum(config != ATEN.text for config in self.configs.values())

    @property
    def verdict(self) -> str:
        """`same kernels` where ATen runs all products, `cannot tell` if the machine was busy, `no difference` where the
        interval of the gain contains 1 or nearly does, `faster`, or `slower`."""
        if not self.kernels:
            return "same kernels"
        if self.disturbed:
            return "cannot tell"
        found = Gain(self.speedup, *(self.interval or (self.speedup, self.speedup))).verdict
        return "no difference" if found == "slower" and self.speedup * SLOWER > 1 else found

    def advice(self) -> str:
        """What to do about a slowdown, in lines: about each product in `slower`, or what else is known of it."""
        found = [
            f"{gain:.1f} us lost to {self.configs[text]} on {text}: measure it again (gemmdb build) or deny the kernel"
            for text, gain in sorted(self.slower.items(), key=lambda item: -item[1])
        ]
        if found or self.verdict != "slower":
            return "\n".join(found)
        if not self.together_us:
            return "no kernel is the reason: with ATen for every product it is as slow"
        kernels = [text for text, config in self.configs.items() if config != ATEN.text]
        return "\n".join(
            (
                f"{self.together_us:.1f} us lost to {len(kernels)} kernels together; none of them alone loses 1%:",
                *(f"  {self.configs[text]} on {text}" for text in kernels),
            )
        )


def compare(
    model: Callable[..., Any],
    *inputs: Any,
    calls: int = 50,
    kwargs: Mapping[str, Any] | None = None,
    say: Say = lambda text: None,
) -> Comparison:
    """Compile `model` with Inductor's default and with gemmdb (as enabled, else as the environment says). Time both on
    `inputs` in turns, `calls` times each, without gradients. Takes two compiles. If gemmdb turns out slower, it takes
    one more with ATen for all products, and if that is faster, one for each distinct problem with another kernel. The
    outputs are compared for the same random numbers and
    for copies of the inputs, because a model may change its inputs. Resets `stats()`.

    `inputs`: the arguments of `model`, or one tuple or list of them. So if the only argument of a model is a list, wrap
    it in a tuple. `kwargs`: its keyword arguments. `say` is told, in a phrase, what begins. Raises InputError
    for `calls` below 1."""
    import torch

    if calls < 1:
        raise InputError(f"compare: calls must be at least 1, got {calls!r}")
    if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)):
        inputs = tuple(inputs[0])
    model = functools.partial(model, **kwargs) if kwargs else model
    before = copied(inputs)
    entry.install()
    served = session.steering() or session_factory.from_tables(entry.policy_of(None, None, Settings.read()))
    with torch.no_grad():
        say("compiling as without gemmdb, to be followed by the same with gemmdb")
        begun = time.monotonic()
        plain = _compile(model, inputs, session_factory.from_chooser(lambda problem: None, None))
        journal.reset_stats()
        say(f"compiling with gemmdb, about {time.monotonic() - begun:.0f} s as without it")
        ours = _compile(model, inputs, served)
        products = journal.stats()["products"]
        configs = {item["problem"]: str(item["config"]) for item in products}
        begun = time.monotonic()
        ours(*inputs)
        _synchronize()
        say(f"2 x {calls} calls to be timed, about {2 * (calls + 2) * (time.monotonic() - begun):.0f} s")
        differ = any(one != ATEN.text for one in configs.values())
        (default, with_gemmdb), busy = _quietly(lambda: _timed(plain, ours, inputs, calls), say, differ)
        brief = tuple({name: value for name, value in one.items() if name != "evidence"} for one in products)
        found = Comparison(
            default.us, with_gemmdb.us, 0.0, configs, {}, 0.0, brief,
            _ends(gain(default, with_gemmdb)), busy.others if busy else None, _is_disturbed(default, busy),
        )  # fmt: skip
        if found.verdict == "slower":

            def lost_us(suspects: Collection[str]) -> float:
                say("compiling with ATen for " + ("one product" if len(suspects) == 1 else f"{len(suspects)} products"))
                spared = _compile(model, inputs, without(suspects, served))
                with_, without_ = _timed(ours, spared, inputs, calls)
                certain = with_.low > without_.high and with_.us > SLOWER * without_.us
                return with_.us - without_.us if certain else 0.0

            slower, together_us = _blamed([text for text, one in configs.items() if one != ATEN.text], lost_us)
            found = replace(found, slower=slower, together_us=together_us)
        return replace(found, error=difference(answer(plain, before), answer(ours, before)))


def _quietly(measure: Callable[[], Spans], say: Say, patient: bool) -> tuple[Spans, Load | None]:
    """What `measure` returns, and the load meanwhile. If it is `patient`, it waits on a busy machine, and measures a
    second time if the machine became busy during the first."""
    limit_s = PATIENCE_S if patient else 0.0
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


def _ends(found: Gain) -> tuple[float, float]:
    return found.low, found.high


def _blamed(suspects: Sequence[str], lost_us: Callable[[Collection[str]], float]) -> tuple[dict[str, float], float]:
    """(the microseconds that each product costs, without those that cost nothing; what all cost together). `lost_us`:
    what some products cost, which takes a compile to find out."""
    together_us = lost_us(suspects) if suspects else 0.0
    if not together_us or len(suspects) == 1:
        return dict.fromkeys(suspects, together_us) if together_us else {}, together_us
    alone = {one: lost_us([one]) for one in suspects}
    return {one: lost for one, lost in alone.items() if lost}, together_us


def without(suspects: Collection[str], served: session.Session) -> session.Session:
    """`served`, with ATen for some problems and the same answers as before for all others. A product may be looked up
    twice: for the operands that a pass sees, and for those that the lowering has."""

    def find(query: Query) -> Hit | None:
        return Hit("forced", ATEN, 0.0, 1.0, "", {}) if query.problem.text in suspects else served.find(query)

    return replace(served, find=find, identity=None, policy=replace(served.policy, on_miss="aten"))


def _compile(model: Any, inputs: Any, using: session.Session) -> Callable[..., Any]:
    """`model`, compiled again with `using`. Compiled functions of earlier calls still work."""
    import torch

    # Each compile has its own backend. With the same one, Dynamo would return its earlier compile of `model`.
    def backend(graph: Any, examples: Any) -> Any:
        return gemmdb(graph, examples)

    run: Callable[..., Any] = torch.compile(model, backend=backend, dynamic=False)
    with session.use(using):
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
    import torch

    # Also when no input is a tensor on a GPU: the model's parameters may be, or tensors inside a container.
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
