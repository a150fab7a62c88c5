"""Counts the calls of a compiled graph, and the sizes that its symbolic GEMMs had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gemmdb.inductor.observe.journal import Event
from gemmdb.workload.seen import MAX_SEEN, Seen, Sizes, merged, rounded

Place = tuple[int, int | None]
"""Where a call has the value of a symbol: an input, and a dimension of it; None for an input that is a number."""
Product = tuple[int, tuple[Place, ...]]
"""A constant factor, and the values that are multiplied with it."""


class Calls(NamedTuple):
    """Calls of a graph. `seen`: for each of its GEMMs, the sizes that they had; empty if unknown."""

    number: int
    seen: Sequence[Seen]


def no_calls(events: Sequence[Event]) -> Calls:
    """Return no calls of a graph with these GEMMs."""
    return Calls(0, ((),) * len(events))


class SizeReader:
    """Reads the symbolic sizes of a graph's GEMMs from the inputs of a call. `places`: the symbols of the inputs."""

    def __init__(self, events: Sequence[Event], places: Mapping[str, Place]) -> None:
        self._events = events
        found = [_products(event, places) for event in events]
        self._products = list(dict.fromkeys(product for one in found for product in one.values()))
        self._of_events = [{name: self._products.index(product) for name, product in one.items()} for one in found]

    def read(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        """Return the sizes of a call to the nearest power of two; empty if they are unknown."""
        try:
            return tuple([rounded(_value(product, inputs)) for product in self._products])
        except (ValueError, TypeError, LookupError, AttributeError):  # A size of 0, or other inputs.
            return ()

    def of(self, values: Sequence[int]) -> list[Sizes]:
        """Return the sizes of each GEMM, within its ranges, from what `read` returned; empty if they are unknown."""
        pairs = zip(self._events, self._of_events, strict=True)
        return [self._sizes(event, products, values) if values and products else () for event, products in pairs]

    def _sizes(self, event: Event, products: Mapping[str, int], values: Sequence[int]) -> Sizes:
        ranges = sorted(event.ranges.items())
        return tuple((name, rounded(values[products[name]], low, high)) for name, (low, high) in ranges)


class CallCounter:
    """Counts the calls of one graph by the sizes of its GEMMs."""

    def __init__(self, events: Sequence[Event], places: Mapping[str, Place]) -> None:
        self._reader = SizeReader(events, places)
        self.clear()

    def clear(self) -> None:
        """Forget the calls so far."""
        self._number = 0
        self._sizes: Counter[tuple[int, ...]] = Counter()

    def count(self, inputs: Sequence[Any]) -> None:
        """Count a call with these inputs, which takes a microsecond for each symbolic size."""
        self._number += 1
        sizes = self._reader.read(inputs)
        if sizes in self._sizes or len(self._sizes) < MAX_SEEN:
            self._sizes[sizes] += 1

    def take(self) -> Calls:
        """Return the calls since the last time."""
        number, counted = self._number, self._sizes
        self.clear()
        found = [[(sizes, calls) for sizes in self._reader.of(values)] for values, calls in counted.items()]
        return Calls(number, [merged(pair for pair in column if pair[0]) for column in zip(*found, strict=True)])


def _products(event: Event, places: Mapping[str, Place]) -> dict[str, Product]:
    """Return the symbolic sizes of a GEMM as products of inputs; none unless all of them are."""
    found: dict[str, Product] = {}
    for name in event.ranges:
        factor, *symbols = event.symbols.get(name, (0,))
        if not factor or any(symbol not in places for symbol in symbols):
            return {}
        found[name] = int(factor), tuple(places[symbol] for symbol in symbols)
    return found


def _value(product: Product, inputs: Sequence[Any]) -> int:
    value, places = product
    for at, dim in places:
        value *= inputs[at] if dim is None else inputs[at].shape[dim]
    return value
