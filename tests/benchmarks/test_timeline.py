"""Where the time of a step goes, and its share of what the memory allows."""

from benchmarks.torch import models
from benchmarks.torch.timeline import Span, Timeline


def test_idle_time_belongs_to_the_kernel_behind_it_and_shared_time_counts_once() -> None:
    spans = [Span("norm", 0, 2), Span("product", 3, 10), Span("norm", 9, 11), Span("product", 11, 15)]
    found = Timeline.of(spans)
    assert (found.span_us, found.busy_us, found.idle_us, found.shared_us) == (15, 14, 1, 1)
    assert found.kernels == (("product", 2, 11, 1), ("norm", 2, 4, 0))
    assert found == Timeline.of(spans[::-1])
    assert found.as_dict()["count"] == 4


def test_a_kernel_within_another_leaves_no_gap() -> None:
    found = Timeline.of([Span("long", 0, 10), Span("short", 2, 3), Span("late", 12, 13)])
    assert (found.span_us, found.busy_us, found.idle_us, found.shared_us) == (13, 11, 2, 1)
    assert {name: before for name, _, _, before in found.kernels} == {"long": 0, "short": 0, "late": 2}


def test_nothing_ran() -> None:
    assert Timeline.of([]) == Timeline(0, 0, 0, 0, ())


def test_a_summary_has_the_share_of_the_limit_and_the_gain_over_each_peer() -> None:
    taken = {"int8/gemmdb": [2.0] * 9, "int8/default": [4.0] * 9}
    ms = {name: [values[0]] * 3 for name, values in taken.items()}
    gains = models.gains(taken)
    assert gains == {"int8 over default": [2.0] * 3}
    found = {"rows": 4, "tokens": 1, "ms": ms, "gains": gains, "limit_ms": {"int8": 1.0}}
    summary = models.summary(found)
    assert summary["tokens_per_s"] == {"int8/gemmdb": 2000, "int8/default": 1000}
    assert summary["limit"] == {"int8": 4000}
    assert summary["of_limit"] == {"int8/gemmdb": 0.5, "int8/default": 0.25}
    assert "idle" not in summary
    traced = {**found, "trace": {"int8/gemmdb": {"idle_us": 1.0, "span_us": 8.0}}}
    assert models.summary(traced)["idle"] == {"int8/gemmdb": 0.125}
    assert "of_limit" not in models.summary({**found, "tokens": 2048})
