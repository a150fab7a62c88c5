"""What `lookup`, `explain` and `coverage` say to do where ATen runs: a line to paste."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from kit.tables import Kit

from gemmdb.devices import detect
from gemmdb.generators import shapes
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import installed
from gemmdb.table.measurement import Measurement, marks

KIT = Kit()
GEMM = Problem.gemm("mm", m=16, n=4096, k=4096, dtype="fp32", constant_weight=True)
ASKED = (KIT.problem.text, "--device", KIT.device.sku)


@pytest.fixture
def tables(environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts rows into the table that is in force."""

    def put(rows: Iterable[Measurement]) -> None:
        monkeypatch.setenv("GEMMDB_TABLES", str(KIT.write(tmp_path / "t.db", rows)))

    return put


def steps(gemmdb, *arguments: str) -> list[str]:
    """The steps of `lookup`, which are those of `explain`."""
    found = [line.split(None, 1)[1] for line in gemmdb("lookup", *arguments).out.splitlines() if line[:5] == "next "]
    explained = gemmdb("explain", *arguments).out.splitlines()
    assert found == [line.removeprefix("next: ") for line in explained if line.startswith("next: ")]
    return found


def test_an_unknown_gemm_is_measured_by_the_pasted_line(gemmdb, environment) -> None:
    (step,) = steps(gemmdb, f"{GEMM.text} (m 1..64)")
    assert step.startswith("no table answers for 1 GEMM; measure them: echo ")
    echo, line, to, path, then, *build = shlex.split(step.partition("measure them: ")[2])
    assert (echo, to, then) == ("echo", ">", "&&")
    assert build == ["gemmdb", "build", "--arch", "native", "--shapes", path]
    Path(path).write_text(line)
    assert shapes.load(path, "cpu") == [GEMM]
    assert json.loads(line)["ranges"] == {"m": [1, 64]}


def test_a_gemm_of_another_device_is_built_there(gemmdb, environment) -> None:
    (step,) = steps(gemmdb, GEMM.text, "--device", "NVIDIA H200")
    assert step.startswith("1 GEMM runs on another device; build there: echo ")


def test_weights_that_must_be_constant_are_frozen(gemmdb, environment) -> None:
    (step,) = steps(gemmdb, replace(GEMM, constant=False).text)
    assert step.endswith(": torch._inductor.config.freezing = True")


def test_nothing_is_to_be_done_where_aten_is_the_best_or_a_kernel_is_served(gemmdb, tables) -> None:
    tables([KIT.row(toolchain=installed("cpu") or KIT.new)])
    assert steps(gemmdb, *ASKED) == ["nothing to do: no kernel is faster than ATen for 1 GEMM here"]
    tables([KIT.row(), KIT.row(KIT.configs[1], 5.0)])
    assert steps(gemmdb, *ASKED) == []


def test_disturbed_times_are_taken_again(gemmdb, tables) -> None:
    tables([replace(KIT.row(), detail=marks(False, True))])
    (step,) = steps(gemmdb, *ASKED)
    assert step.startswith(
        "the timings were disturbed by other programs and are not used; run again when the machine is idle: echo "
    )


def test_a_table_of_another_torch_is_upgraded(gemmdb, tables) -> None:
    pytest.importorskip("torch")
    tables([KIT.row(toolchain=KIT.old)])
    (step,) = steps(gemmdb, *ASKED)
    assert step.startswith("1 GEMM was measured with another version of torch or CUDA; upgrade the table: echo ")
    Path("w.jsonl").write_text(json.dumps({"problem": KIT.problem.text, "device": KIT.device.text}) + "\n")
    done = gemmdb("coverage", "w.jsonl")
    assert done.out.splitlines()[-1] == (
        "next  1 GEMM was measured with another version of torch or CUDA; upgrade the table:"
        " gemmdb build --arch native --shapes w.jsonl"
    )


def test_coverage_names_each_step_once(gemmdb, tables) -> None:
    here = detect.native().text
    gemms = [(GEMM, here), (replace(GEMM, constant=False), here), (KIT.problem, KIT.device.text)]
    tables([KIT.row(toolchain=installed("cpu") or KIT.new)])
    Path("w.jsonl").write_text("".join(json.dumps({"problem": one.text, "device": on}) + "\n" for one, on in gemms))
    found = [line.split(None, 1)[1] for line in gemmdb("coverage", "w.jsonl").out.splitlines() if line[:5] == "next "]
    if detect.native().kind == "cpu":
        assert [step.rpartition(": ")[2] for step in found] == [
            "torch._inductor.config.freezing = True", "gemmdb build --arch native --shapes w.jsonl",
        ]  # fmt: skip


SMALL = Problem.gemm("mm", m=16, n=512, k=512, dtype="bf16", constant_weight=True)


def ranged(us: dict[int, float]) -> list[Measurement]:
    """Rows of a range of M: the microseconds of a kernel, where ATen takes 10."""
    toolchain = installed("cpu") or KIT.new
    sizes = {SMALL.resized(m, 512, 512): time for m, time in us.items()}
    return [KIT.row(problem=size, toolchain=toolchain) for size in sizes] + [
        KIT.row(KIT.configs[1], time, problem=size, toolchain=toolchain) for size, time in sizes.items()
    ]


RANGED = (f"{SMALL.text} (m 2..64)", "--device", KIT.device.sku)
TIGHTER = (
    "no single kernel is good at all sizes of its range for 1 GEMM, but one is up to 32 rows: bound the batch tighter"
    " and run again: torch._dynamo.mark_dynamic(x, 0, min=2, max=32)"
)


def test_a_range_with_a_kernel_for_small_sizes_is_bound_tighter(gemmdb, tables) -> None:
    """It said that there is nothing to do, since no kernel is faster."""
    tables(ranged({2: 5.0, 4: 5.0, 8: 5.0, 16: 6.0, 32: 9.0, 64: 16.0}))
    assert steps(gemmdb, *RANGED) == [TIGHTER]
    found = json.loads(gemmdb("lookup", *RANGED, "--json").out)
    why = "no single kernel is good at all sizes of its range"
    assert (found["outcome"], found["why"]) == ("ATen (refused)", why)
    assert (found["evidence"]["faster_at"], found["evidence"]["good_up_to"]) == ([2, 4, 8, 16, 32], 32)
    line = {"problem": SMALL.text, "device": KIT.device.text, "ranges": {"m": [2, 64]}}
    Path("w.jsonl").write_text(json.dumps(line) + "\n")
    done = gemmdb("coverage", "w.jsonl").out
    assert why in done
    assert done.splitlines()[-1] == f"next  {TIGHTER}"
    narrow = json.loads(gemmdb("lookup", RANGED[0].replace("64)", "32)"), *RANGED[1:], "--json").out)
    assert narrow["outcome"] == "table"


@pytest.mark.parametrize(("us", "kind"), [
    ({2: 12.0, 4: 12.0, 8: 12.0, 16: 12.0, 32: 12.0, 64: 16.0}, "ATen (measured best)"),
    ({2: 16.0, 4: 16.0, 8: 12.0, 16: 5.0, 32: 5.0, 64: 5.0}, "ATen (refused)"),
])  # fmt: skip
def test_without_such_a_size_there_is_nothing_to_do(us, kind, gemmdb, tables) -> None:
    tables(ranged(us))
    (step,) = steps(gemmdb, *RANGED)
    assert step.startswith("nothing to do: no ")
    assert ("no kernel is faster" in step) == (kind != "ATen (refused)")
    assert json.loads(gemmdb("lookup", *RANGED, "--json").out)["outcome"] == kind


OPEN = Problem.gemm("mm", m=4, n=768, k=256, dtype="bf16", constant_weight=True)
BOUND = (
    "the batch of 1 GEMM has no upper bound, or a very large one: give one and run again:"
    " torch._dynamo.mark_dynamic(x, 0, min=2, max=64)"
)
needs_cpu = pytest.mark.skipif(detect.native().kind != "cpu", reason="a CPU's kernel has to serve the whole range")


@needs_cpu
def test_a_range_that_no_build_measures_is_bounded(gemmdb, environment, tables) -> None:
    """A build was advised, which measured the recorded size alone and advised the same again."""
    asked = f"{OPEN.text} (m 2..)"
    assert steps(gemmdb, asked) == [BOUND]
    here = {"problem": OPEN, "device": detect.native(), "toolchain": installed("cpu") or KIT.new}
    tables([KIT.row(**here), KIT.row(KIT.configs[1], 5.0, **here)])
    Path("w.jsonl").write_text(
        json.dumps({"problem": OPEN.text, "device": detect.native().text, "ranges": {"m": [2, None]}}) + "\n"
    )
    why = "its range has no upper bound and reaches m=65536"
    assert json.loads(gemmdb("lookup", asked, "--json").out)["why"].startswith(why)
    assert why in gemmdb("coverage", "w.jsonl").out
    assert steps(gemmdb, asked) == [BOUND]


@needs_cpu
def test_a_record_and_a_build_without_problems_advise_what_coverage_does(gemmdb, environment) -> None:
    """`record` advised a build, and that said `problems 0`, and to run coverage."""
    pytest.importorskip("torch")
    line = {"problem": OPEN.text, "device": detect.native().text, "ranges": {"m": [2, None]}}
    Path("w.jsonl").write_text(json.dumps(line) + "\n")
    assert gemmdb("coverage", "w.jsonl").out.splitlines()[-1] == f"next  {BOUND}"
    assert gemmdb("record", "--out", "w.jsonl", "--", "true").err.splitlines() == [
        "gemmdb: 1 problem in w.jsonl, 0 of them new", f"gemmdb: next: {BOUND}",
    ]  # fmt: skip
    done = gemmdb("build", "--arch", "native", "--shapes", "w.jsonl", "--out", "t.db").out.splitlines()
    assert done[-1].split(None, 2)[2] == BOUND
