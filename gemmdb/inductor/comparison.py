"""The regression guard: a whole program with and without gemmdb, side by side, and which products cost the time."""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gemmdb.errors import InputError
from gemmdb.hit import Hit
from gemmdb.inductor import entry, journal, session, session_factory
from gemmdb.inductor.backend import gemmdb
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Query
from gemmdb.settings import Settings

SLOWER = 1.01
"""From this ratio to default mode on, `compare` looks for the slow products. A smaller ratio is noise."""


@dataclass(frozen=True)
class Comparison:
    """`default_us`, `gemmdb_us`: median microseconds of one call; the two take turns. `error`: `difference` of the
    outputs. `configs`: the lowered configs, by problem text. `slower`: by problem text, how many microseconds the model
    gains when that product goes back to ATen; empty unless gemmdb is slower. `together_us`: what it gains when all
    products go back to ATen, 0 if gemmdb is not slower or its kernels are not the reason. `products`: those of
    `stats()`, without the evidence."""

    default_us: float
    gemmdb_us: float
    error: float
    configs: dict[str, str]
    slower: dict[str, float]
    together_us: float = 0.0
    products: tuple[dict[str, Any], ...] = ()

    @property
    def speedup(self) -> float:
        """The speedup of gemmdb over Inductor's default mode."""
        return self.default_us / self.gemmdb_us

    def advice(self) -> str:
        """What to do about a slowdown, in lines: about each product in `slower`, or what else is known of it."""
        found = [
            f"{gain:.1f} us lost to {self.configs[text]} on {text}: measure it again (gemmdb build) or deny the kernel"
            for text, gain in sorted(self.slower.items(), key=lambda item: -item[1])
        ]
        if found or self.gemmdb_us <= SLOWER * self.default_us:
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
    model: Callable[..., Any], *inputs: Any, calls: int = 50, kwargs: Mapping[str, Any] | None = None
) -> Comparison:
    """Compile `model` with Inductor's default and with gemmdb (as enabled, else as the environment says). Time both on
    `inputs` in turns, `calls` times each, without gradients. Takes two compiles. If gemmdb turns out slower, it takes
    one more with ATen for all products, and if that is faster, one for each distinct problem with another kernel. The
    outputs are compared for the same random numbers and
    for copies of the inputs, because a model may change its inputs. Resets `stats()`.

    `inputs`: the arguments of `model`, or one tuple or list of them. So if the only argument of a model is a list, wrap
    it in a tuple. `kwargs`: its keyword arguments. Raises InputError for `calls` below 1."""
    import torch

    if calls < 1:
        raise InputError(f"compare: calls must be at least 1, got {calls!r}")
    if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)):
        inputs = tuple(inputs[0])
    model = functools.partial(model, **kwargs) if kwargs else model
    before = _copied(inputs)
    entry.install()
    served = session.steering() or session_factory.from_tables(entry.policy_of(None, None, Settings.read()))
    with torch.no_grad():
        plain = _compile(model, inputs, session_factory.from_chooser(lambda problem: None, None))
        journal.reset_stats()
        ours = _compile(model, inputs, served)
        products = journal.stats()["products"]
        configs = {item["problem"]: str(item["config"]) for item in products}
        default_us, gemmdb_us = _medians(plain, ours, inputs, calls)
        slower, together_us = dict[str, float](), 0.0
        if gemmdb_us > SLOWER * default_us:

            def lost_us(suspects: Collection[str]) -> float:
                spared = _compile(model, inputs, without(suspects, served))
                with_us, without_us = _medians(ours, spared, inputs, calls)
                return with_us - without_us if with_us > SLOWER * without_us else 0.0

            slower, together_us = _blamed([text for text, one in configs.items() if one != ATEN.text], lost_us)
        error = difference(_answer(plain, before), _answer(ours, before))
        brief = tuple({name: value for name, value in one.items() if name != "evidence"} for one in products)
        return Comparison(default_us, gemmdb_us, error, configs, slower, together_us, brief)


def _blamed(suspects: Sequence[str], lost_us: Callable[[Collection[str]], float]) -> tuple[dict[str, float], float]:
    """(the microseconds that each product costs, without those that cost nothing; what all cost together). `lost_us`:
    what some products cost, which takes a compile to find out."""
    together_us = lost_us(suspects) if suspects else 0.0
    if not together_us or len(suspects) == 1:
        return dict.fromkeys(suspects, together_us) if together_us else {}, together_us
    alone = {one: lost_us([one]) for one in suspects}
    return {one: lost for one, lost in alone.items() if lost}, together_us


def _answer(function: Callable[..., Any], inputs: Any) -> Any:
    """The output of a compiled function for copies of its inputs, with the same random seed."""
    import torch

    # The other GPUs draw no random numbers, and reading their state would create contexts on them.
    with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_initialized() else []):
        torch.manual_seed(0)
        return function(*_copied(inputs))


def _copied(inputs: Any) -> Any:
    """Copies of all tensors, with the same strides: other strides would cause another compile."""
    import torch
    from torch.utils import _pytree

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


def _medians(first: Callable[..., Any], second: Callable[..., Any], inputs: Any, calls: int) -> tuple[float, float]:
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(calls + 2):
        for function, taken in zip((first, second), times, strict=True):
            start = time.perf_counter()
            function(*inputs)
            _synchronize()
            taken.append((time.perf_counter() - start) * 1e6)
    # the first calls warm up
    return statistics.median(times[0][2:]), statistics.median(times[1][2:])


def _synchronize() -> None:
    import torch

    # Also when no input is a tensor on a GPU: the model's parameters may be, or tensors inside a container.
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def difference(wanted: Any, found: Any) -> float:
    """The largest difference of two outputs, relative to the largest value of its tensor. It is infinite if only one
    of them has a NaN or an infinity at some place."""
    import torch
    from torch.utils import _pytree

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
