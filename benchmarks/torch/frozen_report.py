"""What the lines of `benchmarks.torch frozen` say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from statistics import geometric_mean, median
from typing import Any

WANTED_GAIN, WANTED_COMPILE = 0.97, 1.02
Line = Mapping[str, Any]


def lines(found: Sequence[Line]) -> Iterator[str]:
    """The result as text. A step that failed counts only until it is repeated."""
    last = {(one["kind"], one["label"]): one for one in found}
    for one in last.values():
        if "failure" in one:
            yield f"failed: {one['kind']} {one['label']}: {one['failure'][-300:]}"
    good = [one for one in last.values() if "failure" not in one]
    for one in good:
        if one["kind"] == "freeze":
            yield (
                f"freeze: {one['seconds']:.0f} s, {one['measured']} problems built, {one['left']} left, "
                f"outcomes {json.dumps(one['outcomes'])}"
            )
    starts = [one for one in good if one["kind"] == "start"]
    yield from _codes([one for one in starts if one["label"].startswith("frozen")])
    yield from _compiles(starts)
    yield from _gains([one for one in good if one["kind"] == "gain"])


def _codes(frozen: Sequence[Line]) -> Iterator[str]:
    """Digests by piece, and what the starts timed or wrote."""
    digests: dict[str, set[str]] = {}
    for one in frozen:
        for piece, digest in one["digests"].items():
            digests.setdefault(piece, set()).add(digest)
    gpus = sorted({one["gpu"] for one in frozen})
    different = {piece: len(some) for piece, some in digests.items() if len(some) > 1}
    yield (
        f"code: {len(frozen)} frozen starts on {len(gpus)} GPUs, {len(digests)} pieces, "
        + (f"different digests: {json.dumps(different)}" if different else "one digest each")
    )
    identities = {one["frozen"]["identity"] for one in frozen if one.get("frozen")}
    timed = sum(bool(one["benchmarked"] or one["timings"]) for one in frozen)
    yield (
        f"timing: {timed} of {len(frozen)} starts timed something"
        + (f", such as {json.dumps(next(one['timings'] for one in frozen if one['timings']))}" if timed else "")
        + f"; {sum(bool(one['home']) for one in frozen)} wrote a table, {sum(bool(one['errors']) for one in frozen)} "
        f"had errors; {len(identities)} identity"
    )


def _compiles(starts: Sequence[Line]) -> Iterator[str]:
    """The median compile time of frozen mode over default mode's, of neighboring starts."""
    seconds: dict[str, dict[str, float]] = {}
    for one in starts:
        mode, number = one["label"].split()
        seconds.setdefault(number, {})[mode] = one["compile_s"]
    pairs = [one for one in seconds.values() if len(one) > 1]
    if not pairs:
        return
    medians = {mode: median(one[mode] for one in pairs) for mode in ("default", "frozen")}
    ratio = median(one["frozen"] / one["default"] for one in pairs)
    verdict = "as wanted" if ratio <= WANTED_COMPILE else f"wanted {WANTED_COMPILE}"
    yield (
        f"compile: {medians['frozen']:.1f} s frozen, {medians['default']:.1f} s in default mode; median ratio of "
        f"{len(pairs)} pairs {ratio:.3f}, {verdict}"
    )


def _gains(gains: Sequence[Line]) -> Iterator[str]:
    """The speedups of each piece and size, and the share of the gain that frozen mode keeps."""
    found: dict[bool, list[dict[str, float]]] = {}
    for one in gains:
        for size, ratios in one["speedup"].items():
            middle = {name: ends[1] for name, ends in ratios.items()}
            found.setdefault("deterministic" in one["label"], []).append(middle)
            low, _, high = ratios["frozen/gemmdb"]
            yield (
                f"gain: {one['label']} at {size}: gemmdb {middle['gemmdb/default']:.3f}x, "
                f"frozen {middle['frozen/default']:.3f}x, frozen/gemmdb {low:.3f} to {high:.3f}"
            )
    for strict, some in found.items():
        means = {name: geometric_mean(one[name] for one in some) for name in some[0]}
        verdict = "as wanted" if means["frozen/gemmdb"] >= WANTED_GAIN else f"wanted {WANTED_GAIN}"
        yield (
            f"gain{', deterministic' if strict else ''}: gemmdb {means['gemmdb/default']:.3f}x, "
            f"frozen {means['frozen/default']:.3f}x of default mode, geometric means of {len(some)}; "
            f"frozen/gemmdb {means['frozen/gemmdb']:.3f}, {verdict}"
        )
