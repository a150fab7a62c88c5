"""Kernel: the record with everything that the core knows about one kernel. `gemmdb.kernels.registry` collects them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected

Value = str | int


class ConfigLike(Protocol):
    """A config as the rules and templates of its kernel see it. `gemmdb.kernels.config.Config` is one: it is validated
    against the registry, which is made of the kernels."""

    @property
    def backend(self) -> str: ...
    @property
    def kernel(self) -> str: ...
    @property
    def params(self) -> tuple[tuple[str, Value], ...]: ...
    @property
    def values(self) -> Mapping[str, Value]: ...
    @property
    def name(self) -> str: ...
    @property
    def spec(self) -> Kernel: ...


Rule = Callable[[ConfigLike, Problem, Device, Collection[str]], Rejected | None]
"""Why a config cannot run on a problem and a device, None when it can; the last argument names the sizes among `m`, `n`
and `k` that are not fixed when the kernel is compiled."""
Grid = Callable[[Any, Any, Mapping[str, Any], Callable[[Any, Any], Any]], tuple[Any, Any, Any]]
"""The launch grid for M, N, the template's constants by name, and a division that rounds up. Sizes may be symbols."""


@dataclass(frozen=True, slots=True)
class IntRange:
    """Integers from `low` to `high`, both included; with `power_of_two` only powers of two."""

    low: int
    high: int
    power_of_two: bool = False

    def __contains__(self, value: object) -> bool:
        if type(value) is not int or not self.low <= value <= self.high:
            return False
        return not self.power_of_two or value & (value - 1) == 0


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a fixed list of words or integers."""

    values: tuple[str | int, ...]

    def __contains__(self, value: object) -> bool:
        return any(value == known and type(value) is type(known) for known in self.values)


Domain = IntRange | OneOf


def always(config: ConfigLike) -> bool:
    """True for every config."""
    return True


def never(config: ConfigLike) -> bool:
    """False for every config."""
    return False


def same_speed(config: ConfigLike, problem: Problem) -> int:
    """The `compiled` of a kernel whose code is as fast at all sizes."""
    return 0


@dataclass(frozen=True, slots=True)
class Template:
    """How one of our Triton kernels is rendered and launched.

    `package`: name of the folder that holds its `kernel.py.jinja`. `names`: the constants that the template reads, for
    a config and a problem. `grid`: how many programs run, all at once; a kernel with a parameter `resident` runs at
    most that many per multiprocessor, and each goes on to the next tile. `reduction`: how a config sums the slices of a
    split K: `none` without a split, `kernel` by a second kernel, `fixup` by the last program of each tile.
    """

    package: str
    names: Callable[[ConfigLike, Problem], dict[str, int | str]]
    grid: Grid
    reduction: Callable[[ConfigLike], str] = lambda config: "none"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a backend: the ops it solves, the device kinds it runs on and the domain of each parameter.

    `optional`: the domains of parameters that a config may leave out, and that the texts of older configs lack.
    `cost` orders kernels by how expensive they are to compile: among configs that tie in time, the smaller cost wins.
    `splits` names the parameters that say into how many parts the sum over K is split; 0 leaves it to the backend.
    `rejection`: its rules of legality. `maps`: whether a config loads its operands by tensor maps (TMA). `emitted`:
    only Inductor can build it on a GPU, so it is measured as the code that Inductor emits. `template`: only for our
    Triton kernels.
    `compiled`: what of the sizes decides how fast the compiled kernel is, beyond what the cost model counts: a time
    does not carry over to a problem with another value.
    `int4`: whether it solves a mixed_mm whose weight has a scale for each group, and no other.
    `library`: whether a config names a library's algorithm. `extern`: its call takes the place of ATen's. Nothing is
    fused into either, so what it saves does not depend on the epilogue. `measured_only`: no compile serves it; its time
    is that of ATen in some compiles.
    `digest`: 16 hexadecimal digits of the source that it is rendered from, or the release of the library that has it;
    None for a kernel without either, empty if what has it is not installed. `equivalent` maps former digests to later
    ones that render the same kernels.
    """

    backend: str
    name: str
    ops: tuple[str, ...]
    devices: tuple[str, ...]
    cost: int
    params: Mapping[str, Domain] = field(default_factory=dict)
    optional: Mapping[str, Domain] = field(default_factory=dict)
    splits: tuple[str, ...] = ()
    rejection: Rule = lambda config, problem, device, symbolic: None
    maps: Callable[[ConfigLike], bool] = never
    emitted: bool = False
    template: Template | None = None
    compiled: Callable[[ConfigLike, Problem], int] = same_speed
    digest: Callable[[], str] | None = None
    equivalent: Mapping[str, str] = field(default_factory=dict)
    int4: bool = False
    library: bool = False
    extern: bool = False
    measured_only: bool = False
