"""What `benchmarks.h200 gained` says of an archive."""

from dataclasses import replace
from statistics import geometric_mean

import pytest
from kit.tables import Kit, packed

from benchmarks.h200 import gained, results
from benchmarks.h200.gained import gains, told

KIT = Kit()
FEW, MANY, _ = KIT.problems


def test_a_gemm_gains_what_its_verdict_gains():
    before = [KIT.row(problem=FEW), KIT.row(packed(0), 8.0, problem=FEW), KIT.row(problem=MANY)]
    now = [
        KIT.row(problem=FEW), KIT.row(packed(1), 4.0, problem=FEW),
        KIT.row(problem=MANY), KIT.row(packed(1), 20.0, problem=MANY),
    ]  # fmt: skip
    found = {gain.problem: (gain.ratio, gain.new) for gain in gains(before, now)}
    assert found[FEW] == (pytest.approx(2.0), True)
    assert found[MANY][0] == pytest.approx(1.0)


def test_gemms_without_a_verdict_before_are_left_out():
    assert list(gains([], [KIT.row(problem=FEW), KIT.row(packed(1), 4.0, problem=FEW)])) == []


def test_the_table_has_a_line_for_each_class_and_one_for_all():
    rows = [KIT.row(problem=FEW), KIT.row(packed(1), 5.0, problem=FEW)]
    gain = next(gains([KIT.row(problem=FEW)], rows))
    big = replace(gain, problem=gain.problem.resized(5000, 512, 512), ratio=1.0, new=False)
    lines = told([big, gain]).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["up to 16", "more", "all"]
    assert lines[2] == "| up to 16 | 1 | 2.000x | 2.00x | 2.00x | 1 |"
    assert lines[-1].startswith("| all | 2 | 1.414x | 2.00x | 1.00x | 1 |")


@pytest.mark.slow
def test_the_documents_say_what_it_says_of_the_last_kernel():
    path = results.RESULTS / "2026-11-22" / "rows-34.jsonl.xz"
    now = list(gained.archive.read(path))
    wanted = {row.problem for row in now if row.problem.m <= 16}
    earlier = [one for one in results.archives(path.parent) if one.name < path.name]
    before = (row for one in earlier for row in gained.archive.read(one) if row.problem in wanted)
    found = list(gains(before, [row for row in now if row.problem in wanted]))
    text = (results.ROOT / "docs" / "contributing" / "kernels.md").read_text()
    assert f"{len(found)} of these" in text
    assert f"fastest for {sum(one.new for one in found)} of them" in text
    gain = geometric_mean([one.ratio for one in found])
    assert f"verdicts are {gain:.2f}x as" in text.replace("\n", " ")
