"""The regression guard: a whole model with and without gemmdb, side by side, and which product is to blame."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gemmdb.config import ATEN
from gemmdb.hit import Hit
from gemmdb.inductor import asking, entry, journal, session
from gemmdb.inductor.backend import gemmdb
from gemmdb.problem import Query
from gemmdb.settings import Settings

SLOWER = 1.01
"""A model this much slower than default mode is looked into; below is noise."""


@dataclass(frozen=True)
class Comparison:
    """`default_us`, `gemmdb_us`: median microseconds of one call, taken in turns. `error`: `difference` of the
    outputs. `configs`: what was lowered, by problem text. `slower`: by problem text, how many microseconds the model
    gains when that product goes back to ATen; empty unless gemmdb is slower."""

    default_us: float
    gemmdb_us: float
    error: float
    configs: dict[str, str]
    slower: dict[str, float]

    @property
    def speedup(self) -> float:
        """Of gemmdb over Inductor's default mode."""
        return self.default_us / self.gemmdb_us

    def advice(self) -> str:
        """What to do about the products in `slower`, one line each."""
        return "\n".join(
            f"{gain:.1f} us lost to {self.configs[text]} on {text}: measure it again (gemmdb build) or deny the kernel"
            for text, gain in sorted(self.slower.items(), key=lambda item: -item[1])
        )


def compare(model: Callable[..., Any], *inputs: Any, calls: int = 50) -> Comparison:
    """Compile `model` with Inductor's default and with gemmdb (as enabled, else as the environment says), and time
    both on `inputs`, `calls` times each in turns, in inference mode. Takes two compiles, and one more for each distinct
    kernel when gemmdb turns out slower. Resets `stats()`.

    `inputs`: the arguments of `model`, or one tuple or list of them; so a model whose only argument is a list is given
    it within a tuple."""
    import torch

    if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)):
        inputs = tuple(inputs[0])
    entry.install()
    served = session.steering() or asking.from_tables(entry.policy_of(None, None, Settings.read()))
    with torch.no_grad():
        plain = _compile(model, inputs, asking.from_chooser(lambda problem: None, None))
        journal.reset_stats()
        ours = _compile(model, inputs, served)
        configs = {item["problem"]: str(item["config"]) for item in journal.stats()["products"]}
        default_us, gemmdb_us = _medians(plain, ours, inputs, calls)
        slower: dict[str, float] = {}
        if gemmdb_us > SLOWER * default_us:
            for suspect in [text for text, config in configs.items() if config != ATEN.text]:
                without = _compile(model, inputs, _without(suspect, served))
                with_us, without_us = _medians(ours, without, inputs, calls)
                if with_us > SLOWER * without_us:
                    slower[suspect] = with_us - without_us
        return Comparison(default_us, gemmdb_us, difference(plain(*inputs), ours(*inputs)), configs, slower)


def _without(suspect: str, served: session.Session) -> session.Session:
    """`served`, but for one problem, which is ATen's. What else is asked is answered as before: a product may be asked
    for twice, for the operands that a pass sees and those that the lowering has."""

    def find(query: Query) -> Hit | None:
        return Hit("forced", ATEN, 0.0, 1.0, "", {}) if query.problem.text == suspect else served.find(query)

    return replace(served, find=find, identity=None, policy=replace(served.policy, on_miss="aten"))


def _compile(model: Any, inputs: Any, using: session.Session) -> Callable[..., Any]:
    """`model` compiled anew with `using`; a compiled function of an earlier call is left intact."""
    import torch

    # A backend of its own per compile: Dynamo would hand out what it has compiled for `model` before.
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

    # Also where no input is a tensor of a GPU, but the model's parameters are, or what is in a container.
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def difference(wanted: Any, found: Any) -> float:
    """The largest difference of two outputs of a model relative to the largest value of its tensor; infinite where one
    has a NaN or an infinity that the other has not."""
    import torch
    from torch.utils import _pytree

    worst = 0.0
    for a, b in zip(_pytree.tree_leaves(wanted), _pytree.tree_leaves(found), strict=True):
        if isinstance(a, torch.Tensor) and a.numel():
            a, b = a.double(), b.double()
            same = (a == b) | (a.isnan() & b.isnan())
            off = (a - b).abs().masked_fill(same, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)
            scale = max(a.abs().nan_to_num(nan=0.0, posinf=0.0).max().item(), 1e-30)
            worst = max(worst, off.max().item() / scale)
    return worst
