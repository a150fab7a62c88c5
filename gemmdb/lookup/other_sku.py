"""Predictions from measured rows of another SKU of the same arch, for example an H200's for an H100.

The speedup of one SKU over another depends on what limits the kernel. If memory does, all configs scale by the
bandwidth ratio. If the multiprocessors do, each config scales by its number of waves on each SKU. The truth lies in
between, so a config must be close to the best under both bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from gemmdb.cost.machine import Machine, machine
from gemmdb.cost.transfer import programs
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.lookup.ask import Ask, Candidate
from gemmdb.lookup.neighbours import unfit
from gemmdb.lookup.prediction import Prediction
from gemmdb.rejected import Rejected
from gemmdb.table.reader import Table

OTHER_SKUS = 4
"""Maximum number of other SKUs, most similar first. A table may contain thousands."""
MOST_SM_RATIO = 4
"""SKUs whose number of multiprocessors differs by more than this factor are ignored."""

Predict = Callable[[Ask], Prediction | Rejected | None]


@dataclass(frozen=True, slots=True)
class Scaled:
    """A prediction for another SKU, `device`, scaled to this one. `memory` and `compute`: times relative to ATen under
    each bound. `memory_us` and `compute_us`: ATen's microseconds under each bound."""

    device: Device
    prediction: Prediction
    memory: Mapping[Config, float]
    compute: Mapping[Config, float]
    memory_us: float
    compute_us: float

    def regret(self, config: Config) -> float:
        """Return how far `config` is behind the best config, under the worse bound."""
        return max(times[config] / min(times.values()) - 1 for times in (self.memory, self.compute))

    def best(self) -> Candidate:
        """Return the config with the least regret, with its time under the worse bound."""
        best = min(self.memory, key=lambda config: (self.regret(config), config.spec.cost, config.text))
        regret, loss = self.regret(best), self.prediction.loss(best)
        ratio = max(self.memory[best], self.compute[best])
        aten_us = max(self.memory_us, self.compute_us)
        evidence = {
            **self.prediction.evidence,
            "sku": self.device.sku,
            "measured_as": self.prediction.rung,
            "expected_loss": (1 + loss) * (1 + regret) - 1,
            "bounds_us": {"memory": self.memory_us, "compute": self.compute_us},
        }
        reason = f"{best.name} on {self.device.sku}, at most {regret:.1%} behind the best under both bounds"
        return Candidate(best, ratio * aten_us, 1 / ratio, aten_us, self.prediction.table, evidence, reason)


def predictions(ask: Ask, predict: Predict) -> Iterator[Scaled] | Rejected:
    """Return predictions for the most similar SKUs, scaled to the query's device. `predict`: predicts for another
    SKU."""
    if ask.device.kind != "cuda":
        return Rejected("the rung covers only NVIDIA GPUs")
    here = machine(ask.device)
    if here is None:
        return Rejected(f"it is unknown how {ask.device.sku} compares with other SKUs of its arch")
    return _predictions(ask, here, predict)


def _predictions(ask: Ask, here: Machine, predict: Predict) -> Iterator[Scaled]:
    for device, there in islice(_others(ask, here), OTHER_SKUS):
        found = predict(ask.on(device))
        if isinstance(found, Prediction):
            banned = unfit(ask)
            may = {ATEN, *(c for c in found.gains if c not in banned and ask.rejection(c) is None)}
            kept = {config: one for config, one in found.estimates.items() if config in may}
            yield _scale(ask, replace(found, estimates=kept), device, here, there)


def _others(ask: Ask, here: Machine) -> Iterator[tuple[Device, Machine]]:
    """Return the tables' SKUs of the same arch, most similar first: by multiprocessors, then bandwidth."""
    found: dict[str, tuple[Device, Machine]] = {}
    for table in ask.tables:
        for device in ask.read(Table.devices, table) or ():
            there = machine(device) if device.arch == ask.device.arch and device != ask.device else None
            if there is not None and 1 / MOST_SM_RATIO <= there.sms / here.sms <= MOST_SM_RATIO:
                found.setdefault(device.text, (device, there))

    def difference(pair: tuple[Device, Machine]) -> tuple[float, float, str]:
        device, there = pair
        return abs(here.sms - there.sms), abs(here.dram - there.dram), device.text

    return iter(sorted(found.values(), key=difference))


def _scale(ask: Ask, prediction: Prediction, device: Device, here: Machine, there: Machine) -> Scaled:
    cores = there.sms / here.sms
    compute = {}
    for config, ratio in prediction.ratios.items():
        count = programs(config, ask.problem)
        waves = cores if count is None else -(-count // here.sms) / -(-count // there.sms)
        compute[config] = ratio * waves / cores
    return Scaled(
        device,
        prediction,
        prediction.ratios,
        compute,
        prediction.aten_us * there.dram / here.dram,
        prediction.aten_us * cores * there.tensor / here.tensor,
    )
