"""Every figure of GEMMs and tables in docs/results.md is recomputed from the shipped tables and the raw results."""

from __future__ import annotations

import functools
import json
import math
import re
from typing import Any

import pytest
from kit.results import PAGE, RAW, WORDS, cells, section

from benchmarks.common import ROOT, json_lines
from benchmarks.dense import rows as dense_rows
from benchmarks.h200 import peers_report
from benchmarks.peers import report as board_report
from benchmarks.peers.ops import CLASSES, class_of
from benchmarks.programs.figures import gain, mean, times
from gemmdb.generators.files import archive
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem
from gemmdb.settings import shipped_tables
from gemmdb.table.reader import Table

GEMMS = [
    ("mixed_mm, int8 weights", "mixed_mm", False, 64), ("mixed_mm, int4 weights", "mixed_mm", True, 16),
    ("int_mm", "int_mm", False, 0), ("grouped_mm", "grouped_mm", False, 0), ("scaled_mm", "scaled_mm", False, 64),
    ("bmm", "bmm", False, 0),
]  # fmt: skip
"""The title of a row, its op, whether the weights are int4, and the most rows of its last column."""


@functools.cache
def speedups(name: str) -> list[tuple[Problem, float]]:
    with Table.open(shipped_tables() / name, immutable=True) as table:
        found = [(key[0], table.verdict(*key)) for key in table.decided()]
    return [(problem, verdict.speedup) for problem, verdict in found if verdict is not None]


@functools.cache
def problems(name: str) -> int:
    """The number of problems of a shipped table, as `gemmdb tables` counts them: with or without a verdict."""
    with Table.open(shipped_tables() / name, immutable=True) as table:
        return sum(sum(content["problems"].values()) for content in table.summary())


def test_the_gains_by_op_are_those_of_the_shipped_table() -> None:
    found = speedups("sm90-nvidia-h200.db")
    assert f"holds {problems('sm90-nvidia-h200.db'):,} problems, {len(found):,} of them with a verdict" in WORDS
    rows = {title: rest for title, *rest in cells(section("GEMMs on an H200")) if len(rest) == 2}
    for title, op, int4, few in GEMMS:
        mine = [one for one in found if one[0].op == op and (one[0].int4 is not None) == int4]
        assert rows[title][0] == f"{mean(gain for _, gain in mine):.2f}x", title
        if few:
            small = mean(gain for problem, gain in mine if problem.m <= few)
            assert rows[title][1].startswith(f"{small:.2f}x"), title
    dense = [one for one in found if one[0].op in ("mm", "addmm")]
    small = mean(gain for problem, gain in dense if problem.op == "mm" and problem.m <= 64)
    assert rows["mm and addmm"] == [f"{mean(gain for _, gain in dense):.2f}x", f"{small:.2f}x (mm alone)"]


def test_dense_gemms_are_faster_below_17_rows_and_mostly_cublas_above() -> None:
    found = [one for one in speedups("sm90-nvidia-h200.db") if one[0].op in ("mm", "addmm")]
    dense = [
        one for one in found if one[0].a.dtype == "bf16" and (one[0].bias is None or one[0].bias.kind == "1d")
    ]  # fmt: skip
    few = [gain > 1 for problem, gain in dense if problem.m < 17]
    many = [gain > 1 for problem, gain in dense if 17 <= problem.m <= 4096]
    assert sum(few) > 0.8 * len(few)
    assert 0.25 * len(many) < sum(many) < 0.5 * len(many)


@pytest.mark.slow
def test_what_a_build_of_dense_gemms_gains_is_that_of_its_rows() -> None:
    folder = RAW / "h200" / "2026-11-22"
    measured = (row for number in (16, 17, 18) for row in archive.read(folder / f"rows-{number}.jsonl.xz"))
    found = dense_rows.figures(measured)
    assert "\n".join(dense_rows.text(found)) in PAGE
    assert f"the {found['all']['GEMMs']:,} GEMMs of the preset `dense`" in WORDS


def test_what_layers_with_a_residual_gain_is_that_of_their_rows() -> None:
    rows = list(archive.read(RAW / "h200" / "2026-11-22" / "rows-19.jsonl.xz"))
    found = dense_rows.figures(rows)
    assert "\n".join(dense_rows.text(found)) in PAGE
    count, measured = found["all"]["GEMMs"], len({row.problem for row in rows})
    assert f"{count} of the {measured} GEMMs of the preset `residual`" in WORDS


def test_the_numbers_of_shipped_problems_and_kernels_are_those_of_the_files() -> None:
    h200, h100 = (f"{problems(f'sm90-nvidia-{sku}.db'):,}" for sku in ("h200", "h100-80gb-hbm3"))
    changes, install = (" ".join((ROOT / name).read_text().split()) for name in ("CHANGELOG.md", "docs/install.md"))
    assert f"NVIDIA H200 ({h200} problems) and one for the H100 ({h100})" in changes
    assert f"measured, {h200} problems" in install
    assert f"measured, {h100} problems" in install
    assert "379 CUTLASS kernels ship compiled" in changes  # tests/test_shipped.py counts them.


def test_the_cost_model_has_as_many_rates_and_trees_as_the_page_says() -> None:
    page = " ".join((ROOT / "docs" / "contributing" / "lookup.md").read_text().split())
    data = ROOT / "gemmdb" / "cost"
    rates = {len(kind) for kind in json.loads((data / "coefficients.json").read_text())["rates"].values()}
    trees = {len(json.loads(path.read_text())["trees"]) for path in data.glob("trees*.json")}
    assert len(rates) == 1
    assert f"{max(rates)} fitted rates per kind of kernel" in page
    assert f"up to {max(trees)} regression trees" in page


PEERS = [
    ("GEMMs on an H200", "h200/peers", ("mixed_mm, M <= 64", "int_mm, with and without scale", "mm and addmm, all M")),
    ("GEMMs on an H200", "h200/peers-of-other-ops", ("grouped_mm", "bmm", "int4 weights, M <= 16")),
    ("GEMMs on an H200", "h200/peers-scaled", ("scaled_mm, M <= 64",)),
    ("On an H100", "h100/peers", ("grouped_mm", "bmm", "scaled_mm, M <= 64")),
    ("On an H100", "h100/peers-int4", ("int4 weights, M <= 16",)),
]


BOARD = {
    "int4 weights": "int4", "fp8, block scales": "fp8-block", "experts, bf16": "grouped", "bf16": "bf16",
    "fp8, row scales": "fp8-row", "int8 x int8": "int8", "int8 weights": "int8-weight", "experts, fp8": "grouped-fp8",
}  # fmt: skip
RIVALS = {
    "default mode": "default", "the best that a program can spell": "cublas", "cuBLASLt's best": "cublaslt-best",
    "vLLM 0.26.0: CUTLASS": "vllm-cutlass", "vLLM: CUTLASS for groups": "vllm-cutlass-grouped",
    "vLLM: Marlin": "vllm-marlin", "vLLM: Machete": "vllm-machete",
    "humming": "humming", "tinygemm": "tinygemm",
}  # fmt: skip


def test_the_figures_against_other_kernels_are_those_of_the_raw_results() -> None:
    found = board_report.document(json_lines(RAW / "h200" / "peer-board-2026-12-01.jsonl.xz"))
    rows = {title: rest for title, *rest in cells(section("Against other kernels"))}
    for title, op in BOARD.items():
        best = found["ops"][op]["best rival"]["by M"]
        whole, classes = best["all"], [f"{best[class_of(low)]['mean']:.2f}x" for low, _ in CLASSES]
        low, high = whole["interval"]
        told = [str(whole["count"]), str(whole["lost"]), f"{whole['mean']:.2f}x ({low:.2f} to {high:.2f})"]
        assert rows[title] == [*told, *classes, f"{whole['worst']:.2f}x"]
    assert f"lost {len(found['losses'])} GEMMs by over 5%" in WORDS
    counts = [found["ops"][op]["best rival"]["by M"]["all"]["count"] for op in BOARD.values()]
    assert f"{sum(counts)} GEMMs of eight ops" in WORDS
    for start, rival in RIVALS.items():
        told = next(rest[0] for title, rest in rows.items() if title.startswith(start))
        means = {
            op: found["ops"][op][rival]["by M"]["all"]["mean"] for op in BOARD.values() if rival in found["ops"][op]
        }
        assert sorted(f"{mean:.2f}" for mean in means.values()) == sorted(re.findall(r"([0-9.]+)x(?:,|$)", told)), rival


def test_the_sizes_that_no_table_lists_are_those_of_the_raw_results() -> None:
    lines = [line for line in json_lines(RAW / "offtable" / "fresh-grouped-1.jsonl.gz") if _runs(line)]
    timed = [line for line in lines if not any("failed" in one for one in line["timed"].values())]
    assert f"{len(timed)} random GEMMs with weights of" in WORDS
    shown = {title: rest for title, *rest in cells(section("Sizes that no table lists"))}
    for title, low, high in (("1 to 8", 1, 8), ("9 to 64", 9, 64), ("65 to 512", 65, 512)):
        mine = [line for line in timed if low <= line["m"] <= high]
        told = [str(len(mine))]
        for way in ("certain", "confirming"):
            gains = [gain for line in mine if (gain := _served_gain(line, way))]
            # A trial of a confirmation finds a kernel that is slower than ATen.
            kept = [max(gain, 1.0) for gain in gains] if way == "confirming" else gains
            over = math.exp(sum(map(math.log, kept)) / len(mine))
            told.append(f"{over:.2f}x, {len(gains)} kernels")
            assert min(gains) > 0.99
        assert shown[title] == told


def _runs(line: dict[str, Any]) -> bool:
    """Whether a line has a problem that torch runs: with block scales, K is a multiple of 512."""
    problem = Problem.parse(line["problem"]) if "problem" in line else None
    return problem is not None and (problem.scales != "block" or problem.k % 512 == 0)


def _served_gain(line: dict[str, Any], way: str) -> float:
    """What the kernel of an answer gains over ATen; 0 if ATen is served."""
    config = (line[way] or {}).get("config", ATEN.text)
    if config == ATEN.text:
        return 0.0
    return float(line["timed"][config]["aten_us"] / line["timed"][config]["us"])


@pytest.mark.parametrize(("title", "raw", "strata"), PEERS)
def test_the_samples_against_max_autotune_are_those_of_the_raw_results(
    title: str, raw: str, strata: tuple[str, ...]
) -> None:
    summary = peers_report.summary(json_lines(RAW / f"{raw}.jsonl.xz"))
    assert summary is not None
    found = {one["problems"]: one for one in summary["figures"]}
    for name in strata:
        one = found[name]
        low, high = one["autotune_interval"]
        told = f"{one['autotune']:.2f}x | {low:.2f} to {high:.2f} | {one['default']:.2f}x"
        assert f"| {name} | {one['number']} | {told} |" in section(title)


def test_the_worst_of_the_samples_is_named() -> None:
    lines = [
        line
        for _, raw, strata in PEERS[1:3]
        for line in json_lines(RAW / f"{raw}.jsonl.xz")
        if line.get("stratum") in strata and peers_report.right(line)
    ]
    worst = min(lines, key=lambda line: peers_report.gain(line, "autotune"))
    problem = Problem.parse(worst["problem"])
    named = f"a bmm of {problem.batch} x {problem.m} x {problem.n} x {problem.k} in {problem.a.dtype}"
    assert f"{named}, at {peers_report.gain(worst, 'autotune'):.2f}x of max-autotune" in WORDS


def test_the_h100_is_that_of_its_table_and_raw_results() -> None:
    name = "sm90-nvidia-h100-80gb-hbm3.db"
    gains = [gain for _, gain in speedups(name)]
    known = f"{problems(name):,} problems of its own, {len(gains):,} of them with a verdict"
    assert f"a table of {known}, {mean(gains):.2f}x over ATen" in WORDS
    runs: dict[str, Any] = {run["program"]: run for run in json_lines(RAW / "h100" / "programs.jsonl.xz")}
    told = {row[0]: row[1:] for row in cells(section("On an H100")) if row[0] in runs}
    assert set(told) == set(runs)
    for name, run in runs.items():
        low, middle, _ = gain(run, "gemmdb", "default") or [math.nan] * 3
        assert low > 0.99
        auto = gain(run, "max-autotune", "default")
        seconds = [f"{run['ways'][mode]['cold_s']:.1f}" for mode in ("default", "gemmdb")]
        us = f"{times(run)['default'][1]:,.0f}"
        assert told[name] == [us, f"{middle:.3f}x", f"{auto[1]:.3f}x" if auto else "", *seconds]


def test_live_tuning_is_that_of_the_raw_results() -> None:
    live = json.loads((RAW / "h200" / "live.json").read_text())
    first, second, eight = live["tuning_s"]
    assert f"spends {first:.1f} s on it, the second {second:.1f} s, one with eight new GEMMs {eight:.1f} s" in WORDS
    assert f"reach {live['share']['mean']:.3f} of the best" in WORDS
