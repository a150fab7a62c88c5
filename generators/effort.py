"""Effort presets of a build, by device kind and name: how much it tries and how long it times."""

from __future__ import annotations

from dataclasses import dataclass

from gemmdb.errors import InputError, choices

SAMPLE_US = 3000.0
"""A timed CUDA graph has only as many calls as fit into this time."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """`breadth`: how much of the space to try; 0 is the least, and each backend's space defines it.

    `samples`: timed calls of a full measurement; `estimate`: timed calls of the short one at the start of the search.
    `drop`: a candidate whose estimate is this many times the best one is dropped, but `keep` of them always survive.
    `states`: cache states (`gemmdb.key.problem.L2_STATES`), one protocol each. `compile_s`, `measure_s`: timeouts in
    seconds for compiling one candidate and for one round of measuring. `confirm`: whether to measure the winner again
    in a new process. `rivals`: number of configs close to the winner to measure again with it, as emitted code, in two
    processes. `trusted`: backends whose winners are not measured again, unless another backend's was.

    `likely`: number of our kernels' configs to try, the fastest by the cost model; None leaves it to the space.
    `proposals`: number of configs that a library on the device may propose; `neighbours`: of configs like its best two.
    """

    name: str
    breadth: int
    samples: int
    estimate: int
    drop: float
    keep: int
    states: tuple[str, ...] = ("cold",)
    compile_s: float = 120.0
    measure_s: float
    confirm: bool = True
    rivals: int = 0
    trusted: tuple[str, ...] = ()
    likely: int | None = None
    proposals: int = 0
    neighbours: int = 0


EFFORTS: dict[tuple[str, str], Effort] = {
    # A CPU has so few candidates that `quick` drops none: no status depends on the noise of an estimate.
    ("cpu", "quick"): Effort(name="quick", breadth=0, samples=30, estimate=5, drop=2.0, keep=16, measure_s=120.0),
    ("cpu", "standard"): Effort(name="standard", breadth=1, samples=60, estimate=7, drop=2.0, keep=4, measure_s=240.0),
    ("cpu", "full"): Effort(
        name="full", breadth=2, samples=100, estimate=7, drop=3.0, keep=8, states=("cold", "hot"), compile_s=300.0,
        measure_s=600.0,
    ),
    # On a GPU an estimate of three samples leaves a handful of a hundred candidates. `quick` and `standard` have the
    # same protocol, so one can continue a table of the other.
    ("gpu", "quick"): Effort(
        name="quick", breadth=0, samples=30, estimate=3, drop=1.05, keep=5, measure_s=60.0, rivals=12,
        proposals=8, neighbours=8,
    ),
    ("gpu", "standard"): Effort(
        name="standard", breadth=1, samples=30, estimate=3, drop=1.05, keep=5, measure_s=60.0, rivals=12,
        proposals=32, neighbours=24,
    ),
    ("gpu", "full"): Effort(
        name="full", breadth=2, samples=60, estimate=3, drop=1.05, keep=8, states=("cold", "hot"), compile_s=300.0,
        measure_s=120.0, rivals=12, proposals=32, neighbours=24,
    ),
    # For thousands of dense GEMMs: few candidates. Most are cuBLASLt's, and a program makes the call that was timed.
    ("gpu", "lean"): Effort(
        name="lean", breadth=0, samples=15, estimate=1, drop=1.02, keep=3, measure_s=60.0, trusted=("cublaslt",),
        likely=4, proposals=8, neighbours=8,
    ),
}  # fmt: skip
"""By device kind, `cpu` or `gpu`, and name."""


def names(kind: str) -> tuple[str, ...]:
    """Return the names of the efforts for devices of `kind`."""
    return tuple(name for of, name in EFFORTS if of == ("cpu" if kind == "cpu" else "gpu"))


def check(name: str | None) -> None:
    """Raise InputError unless an effort, for some kind of device, has this name, or it is None."""
    known = dict.fromkeys(name for _, name in EFFORTS)
    if name and name not in known:
        raise InputError(f"unknown effort {name!r}; {choices(name, known)}")


def named(name: str | None, kind: str = "cpu") -> Effort:
    """Return the effort with that name for devices of `kind`. None gives the default: `quick` on a CPU, elsewhere
    `standard`, since `quick` tries only one backend there. Raises InputError."""
    check(name)
    name = name or ("quick" if kind == "cpu" else "standard")
    if name not in names(kind):
        raise InputError(f"effort {name} is for GPUs only; others: {', '.join(names(kind))}")
    return EFFORTS["cpu" if kind == "cpu" else "gpu", name]
