"""Inductor's log of timings: what it says becomes rows, the rest is counted, and bad input is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.foreign import H200, MILLISECONDS, TILES, on_h200, rows_of, tile, write

from gemmdb.errors import InputError
from gemmdb.exchange.foreign.races import SPREAD
from gemmdb.exchange.formats import load
from gemmdb.generators.measure.cuda.backend import VERSION
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.table.measurement import Measurement, Protocol, Status, Times
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

LOG = [
    {
        "(16, 4096, 512)": [
            {"type": "cublas", "time": 0.02},
            {"type": "triton", "time": 0.01, "BLOCK_M": 16, "BLOCK_K": 128, "BLOCK_N": 32, "num_stages": 4,
             "num_warps": 2, "waves_per_eu": 0, "matrix_instr_nonkdim": 0, "kpack": 2},
            {"type": "triton", "time": float("inf"), "BLOCK_M": 128, "BLOCK_K": 128, "BLOCK_N": 128, "num_stages": 5,
             "num_warps": 8, "waves_per_eu": 0, "matrix_instr_nonkdim": 0, "kpack": 2},
        ],
        "kernel_type": "mm",
    }
]  # fmt: skip


MM = Problem.gemm("mm", m=16, n=512, k=4096)


def imported(folder, document, **said):
    """What is imported from a log, and the table that it is imported into."""
    path = write(folder / "mm.json", document)
    return load(path, folder / "a.db", "inductor-log", on_h200(**{"dtype": "bf16", **said})), Table.open(
        folder / "a.db"
    )


@pytest.mark.parametrize("between", [[], [{"invoke": "(16, 4096, 512)"}]], ids=["races alone", "and invocations"])
def test_a_log_becomes_verdicts(tmp_path, between):
    log = [*between, *LOG, *between]
    found, table = imported(tmp_path, log)
    assert (found.carried, found.left) == (3, ())
    with table:
        verdict = table.verdict(MM, H200)
        assert verdict is not None
        assert verdict.pick == tile(16, 32, 128, 2, 4)
        assert (verdict.speedup, verdict.aten_us, verdict.klass) == (2.0, 20.0, "cuda13")
        statuses = {row.config.text: row.status for row in table.rows(MM, H200)}
        assert statuses[tile(128, 128, 128, 8, 5).text] is Status.ERROR
        (run,) = table.provenance()
        assert (run["imported"], run["file"]) == ("inductor-log", "mm.json")
    # Again: nothing new. The same file said to be of another dtype: another run.
    assert imported(tmp_path, log)[0].total == 3
    assert imported(tmp_path, log, dtype="fp16")[0].total == 6


def test_a_gain_within_the_unknown_noise_is_none(tmp_path):
    document = json.loads(json.dumps(LOG))
    document[0]["(16, 4096, 512)"][1]["time"] = 0.018
    with imported(tmp_path, document)[1] as table:
        verdict = table.verdict(MM, H200)
        assert verdict is not None
        assert verdict.pick == ATEN


@settings(max_examples=30)
@given(
    races=st.dictionaries(
        st.tuples(*(st.integers(1, 9000) for _ in range(3))),
        st.tuples(MILLISECONDS, st.dictionaries(TILES, MILLISECONDS, max_size=5)),
        max_size=4,
    )
)
def test_every_time_of_a_log_is_kept(races, tmp_path_factory):
    document = []
    for (m, k, n), (aten, timed) in races.items():
        choices = [{"type": "cublas", "time": aten}]
        for (bm, bn, bk, warps, stages), ms in timed.items():
            choices.append({"type": "triton", "time": ms, "BLOCK_M": bm, "BLOCK_N": bn, "BLOCK_K": bk,
                            "num_warps": warps, "num_stages": stages})  # fmt: skip
        document.append({str((m, k, n)): choices, "kernel_type": "mm"})
    path = write(tmp_path_factory.mktemp("log") / "mm.json", document)
    rows, left = rows_of("inductor-log", path, on_h200(dtype="fp16"))
    assert left == {}
    wanted = {
        (m, n, k, config): (ms * 1000, aten * 1000)
        for (m, k, n), (aten, timed) in races.items()
        for config, ms in [(ATEN, aten), *((tile(*one), ms) for one, ms in timed.items())]
    }
    assert wanted == {
        (r.problem.m, r.problem.n, r.problem.k, r.config): (r.times.median_us, r.times.aten_us) for r in rows if r.times
    }
    assert all(r.times and r.times.low_us == r.times.median_us * (1 - SPREAD) for r in rows)
    assert all((r.status is Status.OK) == bool(races[r.problem.m, r.problem.k, r.problem.n][1]) for r in rows)


def test_what_a_log_cannot_say_is_counted(tmp_path):
    document = json.loads(json.dumps(LOG))
    entry = document[0].pop("(16, 4096, 512)")
    twice = {"(8, 64, 64)": [entry[0], entry[1], entry[1], None], "kernel_type": "mm"}
    document += [
        twice,
        {"(s77, 64, 64)": entry, "kernel_type": "mm"},
        {"(8, 64, 64)": entry, "kernel_type": "bmm"},
        {"(9, 64, 64)": entry[1:], "kernel_type": "mm"},
        {"(10, 64, 64)": [entry[0], entry[1] | {"BLOCK_M": 8}], "kernel_type": "mm"},
    ]
    rows, left = rows_of("inductor-log", write(tmp_path / "mm.json", document), on_h200(dtype="bf16"))
    assert left == {
        "several templates have this tile, and the log does not distinguish them": 2,
        "the log does not describe the choice (null)": 1,
        "a size is symbolic": 3,
        "the log does not describe the GEMM bmm": 3,
        "ATen was not timed in this run, so there is no reference time": 2,
        "gemmdb does not support this tile: block_m out of range": 1,
    }
    # ATen alone is left of these races, and it does not win them by that.
    assert {row.config for row in rows} == {ATEN}
    assert {row.status for row in rows} == {Status.SLOW}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ('[\n{"(1, 1, 1)": [\n{]', ":3: not JSON"),
        ("[1]", "is not an object"),
        ('[\n{\n"(1, 1, 1)": 5}]', ":3: not an Inductor log"),
        ('[\n{\n"(1, 1)": []}]', ":3: '(1, 1)' is not (M, K, N)"),
        ('[\n{\n"(1, 1, __import__)": []}]', "a size is symbolic"),
        ('[\n{\n"(1, 1, 1)": [5]}]', ":3: not an Inductor choice"),
        ('[\n{\n"(1, 1, 1)": [{"type": "cublas"}]}]', ":3: a time must be"),
        ('[\n{\n"(1, 1, 1)": [{"type": "cublas", "time": null}]}]', ":3: a time must be"),
        ('[\n{\n"(1, 1, 1)": [{"type": "cublas", "time": true}]}]', ":3: a time must be"),
        ('[\n{\n"(1, 1, 1)": [{"type": "cublas", "time": -1}]}]', ":3: -1 is not a valid time"),
        ('[\n{\n"(1, 1, 1)": [{"type": "cublas", "time": 1e300}]}]', ":3: 1e+300 is not a valid time"),
        ('[\n{\n"(1, 1, 1)": [{"type": "cublas", "time": ' + "9" * 400 + "}]}]", ":3: a time must be"),
        ('[\n{\n"(1, 1, 1)": [{"type": "triton", "time": 1, "BLOCK_M": "os"}]}]', ":3: BLOCK_M"),
        ('[\n{\n"(9999999999, 1, 1)": [{"type": "cublas", "time": 1}]}]', ":3: "),
    ],
)
def test_a_bad_log_is_refused_with_its_line(tmp_path, document, said):
    path = write(tmp_path / "bad.json", document)
    try:
        _, left = rows_of("inductor-log", path, on_h200(dtype="bf16", op="mm"))
        found = " ".join(left)
    except InputError as error:
        found = str(error)
    assert said in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("said", "missing"),
    [
        ({"device": None}, "--device is missing"),
        ({"cuda": None}, "--cuda is missing"),
        ({"dtype": None}, "--dtype is missing"),
        ({}, r"--op is missing: .*mm\.json:3 does not name the op"),
    ],
)
def test_what_the_caller_must_say_is_named(tmp_path, said, missing):
    unnamed = [{"(16, 4096, 512)": LOG[0]["(16, 4096, 512)"]}]
    path = write(tmp_path / "mm.json", unnamed)
    with pytest.raises(InputError, match=missing):
        rows_of("inductor-log", path, on_h200(**{"dtype": "bf16", **said}))
    (rows, left) = rows_of("inductor-log", path, on_h200(dtype="bf16", op="mm"))
    assert (len(rows), left) == (3, {})


def test_in_one_table_the_rows_of_a_build_answer(tmp_path):
    protocol = Protocol("graph", "cold", 20, 30, version=VERSION)
    times = Times(20.0, 19.9, 20.1, 30, 20.0)
    with Store.open(tmp_path / "a.db") as store:
        store.add([Measurement(MM, ATEN, H200, protocol, Toolchain(cuda="13.0"), "run-1", Status.OK, times)])
        store.refresh()
    with imported(tmp_path, LOG, torch="9.9")[1] as table:
        assert len(table.verdicts(MM, H200)) == 2
        verdict = table.verdict(MM, H200)
    assert verdict is not None
    assert (verdict.pick, verdict.protocol) == (ATEN, protocol)
