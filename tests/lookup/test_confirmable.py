"""Which answers a compile confirms, as far as the question says."""

from __future__ import annotations

import pytest

from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import confirmable
from gemmdb.settings import Policy

H100 = Device("cuda", "sm90", "NVIDIA H100 80GB HBM3", 132)
CPU = Device("cpu", "cpu", "Example CPU", 2, isa="avx2")
PLAIN = Problem.gemm("mm", m=8, n=4096, k=4096)
EXPERTS = Problem.gemm("grouped_mm", m=64, n=4096, k=4096)
ASKED = Policy(confirm=True)


@pytest.mark.parametrize(
    ("query", "confirms"),
    [
        (Query(PLAIN, H100, {}), True),
        (Query(PLAIN, H100, {"m": (8, 8)}), True),
        (Query(PLAIN, H100, {"m": (1, 8)}), False),
        (Query(EXPERTS, H100, {}), False),
        (Query(PLAIN, CPU, {}), False),
    ],
)
def test_the_policy_of_a_query(query, confirms):
    assert confirmable.applied(query, ASKED).confirm is confirms
    assert (confirmable.objection(query, ASKED) == "") is confirms
    assert not confirmable.applied(query, Policy(confirm=False)).confirm
    assert confirmable.applied(query, Policy()) == Policy()
