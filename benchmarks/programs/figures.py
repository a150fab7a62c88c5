"""The figures of measured programs: ratios with their intervals, means by class, the counts that the goals name."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gemmdb.table.stats import interval

SLOWER = 1.01
"""A program is slower if its time over default mode's is above this at the lower end of the interval."""
Row = Mapping[str, Any]
DECODING, FORWARD = "decode steps", "encoders, vision, audio, diffusion, prefills"
CLASSES = (DECODING, FORWARD, "training", "int8", "fp8")
"""The classes of programs. The first two are inference in bf16."""
TOGETHER = {"bf16": "bf16", "int8": "int8 and fp8", "fp8": "int8 and fp8"}
"""What a kind of programs is called in the means over several classes."""


def ends(values: Sequence[float]) -> list[float]:
    """The median between the ends of its 95% interval."""
    ordered = sorted(values)
    low, high = interval(len(ordered))
    return [ordered[low], statistics.median(ordered), ordered[high]]


def times(row: Row) -> dict[str, list[float]]:
    """Microseconds of each way: the median between the ends of its interval."""
    return {name: ends(values) for name, values in row.get("taken", {}).items() if values}


def gain(row: Row, way: str, over: str) -> list[float] | None:
    """The time of `over` over that of `way`: the median of the rounds, in which one follows the other, between the
    ends of its interval. None if one of them is missing. A step that was timed a few times only gives its median to all
    rounds."""
    taken = row.get("taken", {})
    ours, theirs = taken.get(way), taken.get(over)
    if not ours or not theirs:
        return None
    if len(ours) != len(theirs):
        count = max(len(ours), len(theirs))
        ours, theirs = (one if len(one) == count else [statistics.median(one)] * count for one in (ours, theirs))
    return ends([other / mine for mine, other in zip(ours, theirs, strict=True)])


def as_run(row: Row) -> Row:
    """The row with the times of the steps as a user runs them, without a CUDA graph; with none if they were not
    taken."""
    if row.get("clock", "graph") != "graph":
        return row
    earlier = [as_run(one) for one in row.get("earlier", ())]
    return {**row, "taken": row.get("as_run", {}), "earlier": earlier}


def compiled(row: Row, way: str, over: str, state: str = "cold_s") -> float | None:
    """The compile time of `way` over that of `over`."""
    ours, theirs = (row["ways"].get(name, {}).get(state) for name in (way, over))
    return ours / theirs if ours and theirs else None


def slower(row: Row, way: str) -> bool:
    """Whether `way` is slower than default mode beyond noise."""
    found = gain(row, way, "default")
    return found is not None and 1 / found[2] > SLOWER


def wrong(row: Row, way: str, tolerance: float = 0.02) -> bool:
    """Whether the outputs of `way` are farther from the reference than twice default mode's, and than `tolerance`."""
    mine, plain = (row["ways"].get(name, {}).get("error") for name in (way, "default"))
    if mine is None or plain is None:
        return False
    return not mine <= max(2 * plain, tolerance)


def summary(row: Row) -> dict[str, Any]:
    """What a run prints of a program."""
    found: dict[str, Any] = {"us": {name: round(one[1], 1) for name, one in times(row).items()}}
    for name in row["ways"]:
        for words, one in (("over default", row), ("over default as run", as_run(row))):
            over = gain(one, name, "default") if name != "default" else None
            if over:
                found[f"{name} {words}"] = [round(end, 3) for end in over]
    for state in ("cold_s", "warm_s"):
        found[state] = {name: round(facts[state], 2) for name, facts in row["ways"].items() if state in facts}
    found["rungs"] = stats(row).get("rungs", {})
    failures = {name: facts["failure"] for name, facts in row["ways"].items() if "failure" in facts}
    if row.get("failure"):
        failures["warm"] = row["failure"]
    return {**found, **({"failures": failures} if failures else {})}


def stats(row: Row, way: str = "gemmdb") -> dict[str, Any]:
    """What gemmdb's `stats()` said in the cold compile of a way; empty if there was none."""
    found: dict[str, Any] = row["ways"].get(way, {}).get("stats", {})
    return found


def mean(values: Iterable[float]) -> float | None:
    """The geometric mean, None of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def latest(rows: Sequence[Row]) -> list[Row]:
    """For each program its last row that was timed, or that was to be, with its others as `earlier`, the last first.
    Where there are only rows of cold compiles, the last of these. Skipped programs are left out."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if "skipped" not in row:
            found.setdefault(row["program"], []).append(row)
    return [_with_others(one[::-1]) for one in found.values()]


def _with_others(rows: Sequence[Row]) -> Row:
    """The first of these rows that is not one of cold compiles alone, with all others."""
    chosen = next((row for row in rows if not row.get("cold")), rows[0])
    others = [row for row in rows if row is not chosen]
    return {**chosen, "earlier": [*others, *chosen.get("earlier", ())]}


def comparing(row: Row, way: str, over: str) -> Row:
    """The last row of the program in which both ways were timed: times of different rows do not belong together. The
    row itself if there is none."""
    both = {way, over}
    return next((one for one in _all(row) if both <= set(one.get("taken", {}))), row)


def compiling(row: Row, way: str, over: str, state: str = "cold_s") -> Row:
    """The row by which compile times of both ways are compared. It is the last with nothing but cold compiles, which
    are disturbed the least; then that whose times are compared; then the last that has them. The row itself if none
    has."""
    has = [one for one in _all(row) if compiled(one, way, over, state) is not None]
    timed = comparing(row, way, over)
    return next((one for one in has if one.get("cold")), timed if timed in has else next(iter(has), row))


def _all(row: Row) -> list[Row]:
    return [row, *row.get("earlier", ())]


def class_of(row: Row) -> str:
    """Which of CLASSES the program is in."""
    if row["kind"] != "bf16":
        return str(row["kind"])
    loop = row.get("collection") in ("fast", "generating")
    return DECODING if loop or "decode" in row["program"] else FORWARD


def figures(rows: Sequence[Row], way: str = "gemmdb") -> dict[str, Any]:
    """The figures of the suite: gains of the last row of each program with times, compile times as `compiling` says."""
    known = latest(rows)
    found: dict[str, Any] = {
        "way": way,
        "programs": len(known),
        "timed": sum(gain(row, way, "default") is not None for row in known),
        "slower": sorted(row["program"] for row in known if slower(row, way)),
        "wrong": sorted(row["program"] for row in known if wrong(row, way)),
        "failed": sorted(row["program"] for row in known if failed(row)),
    }
    for over in ("default", "max-autotune"):
        found[f"over {over}"] = _classes(known, way, over)
        for state in ("cold_s", "warm_s"):
            pairs = (compiling(row, way, over, state) for row in known)
            ratios = [one for pair in pairs if (one := compiled(pair, way, over, state)) is not None]
            found[f"compile {state.removesuffix('_s')} over {over}"] = statistics.median(ratios) if ratios else None
    users = [as_run(row) for row in known]
    found["over default as run"] = _classes(users, way, "default")
    found["timed as run"] = sum(gain(comparing(row, way, "default"), way, "default") is not None for row in users)
    found["slower as run"] = sorted(row["program"] for row in users if slower(comparing(row, way, "default"), way))
    both = [pair for row in known if compiled(pair := compiling(row, way, "default"), way, "default") is not None]
    found["compiled with nothing else"] = sum(pair.get("cold", False) for pair in both)
    longer = [pair["ways"][way]["cold_s"] - pair["ways"]["default"]["cold_s"] for pair in both]
    found["most seconds longer than default"] = max(longer, default=None)
    lost = [one["lost_us"][0] for row in known for one in row.get("blame", ())]
    found["most us lost to one product"] = max(lost, default=None)
    return found


def failed(row: Row) -> bool:
    """Whether something of a program failed."""
    return "failure" in row or any("failure" in facts for facts in row["ways"].values())


def _classes(rows: Sequence[Row], way: str, over: str) -> dict[str, dict[str, float]]:
    """For each class, and for those that the goals take together: how many programs were timed in both ways, and the
    geometric mean, the median, the least and the most of their gains. A mean of all would be that of one int8 program,
    for which default mode has no kernel."""
    gains: dict[str, list[float]] = {}
    for row in rows:
        if found := gain(comparing(row, way, over), way, over):
            for name in (class_of(row), TOGETHER.get(row["kind"])):
                if name:
                    gains.setdefault(name, []).append(found[1])
    return {name: _spread(gains[name]) for name in (*CLASSES, *sorted({*TOGETHER.values()})) if name in gains}


def _spread(values: Sequence[float]) -> dict[str, float]:
    found = {"mean": mean(values), "median": statistics.median(values), "from": min(values), "to": max(values)}
    return {"programs": len(values), **{name: value for name, value in found.items() if value is not None}}
