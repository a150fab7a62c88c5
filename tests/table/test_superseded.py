"""Times that compare with another reference than today's do not count."""

from dataclasses import replace

import pytest
from kit.tables import Kit

from gemmdb import Problem
from gemmdb.kernels.config import ATEN
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

KIT = Kit()
FAST = KIT.configs[1]
INT8 = Problem.gemm("mixed_mm", m=16, n=512, k=512, fusion="scale", constant_weight=True)
FIRST = replace(KIT.cold, version=1)
NOW = replace(KIT.cold, version=3)


def stored(tmp_path, problem, protocol, us):
    path = tmp_path / "table.db"
    with Store.open(path) as store:
        store.add([KIT.row(ATEN, problem=problem, protocol=protocol),
                   KIT.row(FAST, us=us, problem=problem, protocol=protocol)])  # fmt: skip
        store.refresh()
    return Table.open(path)


def test_an_int8_weight_on_a_cpu_that_was_compared_with_a_cast_has_no_verdict(tmp_path):
    with stored(tmp_path, INT8, FIRST, 1.0) as table:
        assert table.verdict(INT8, KIT.device) is None
        assert table.verdicts(INT8, KIT.device) == []
        assert table.pooled(INT8, KIT.device) == ()
        assert len(table.rows(INT8, KIT.device)) == 2


def test_new_times_are_not_pooled_with_them(tmp_path):
    stored(tmp_path, INT8, FIRST, 1.0).close()
    with stored(tmp_path, INT8, NOW, 9.0) as table:
        verdict = table.verdict(INT8, KIT.device)
        assert verdict is not None
        assert verdict.ratio == pytest.approx(0.9)
        assert {time.config: time.ratio for time in table.pooled(INT8, KIT.device)}[FAST] == pytest.approx(
            0.9, rel=1e-3
        )


def test_the_reference_of_other_gemms_has_not_changed(tmp_path):
    with stored(tmp_path, KIT.problem, FIRST, 5.0) as table:
        verdict = table.verdict(KIT.problem, KIT.device)
        assert verdict is not None
        assert verdict.pick == FAST
