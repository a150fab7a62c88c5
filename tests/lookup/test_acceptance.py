"""Which answers a compile confirms, as far as the query says; and what the policy rules out."""

import re
from pathlib import Path

import pytest

from gemmdb import lookup
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem, Query
from gemmdb.lookup import acceptance
from gemmdb.lookup.ask import splits_reduction
from gemmdb.settings import Policy

H100 = Device("cuda", "sm90", "NVIDIA H100 80GB HBM3", 132)
CPU = Device("cpu", "cpu", "Example CPU", 2, isa="avx2")
PLAIN = Problem.gemm("mm", m=8, n=4096, k=4096)
EXPERTS = Problem.gemm("grouped_mm", m=64, n=4096, k=4096)
ASKED = Policy(confirm=True)
GROUPED = "triton:grouped block_k=64 block_m=16 block_n=64 flatten=0 load=tma resident=2{} stages=3 swap=0 warps=4"


@pytest.mark.parametrize(
    ("query", "confirms"),
    [
        (Query(PLAIN, H100, {}), True),
        (Query(PLAIN, H100, {"m": (8, 8)}), True),
        (Query(PLAIN, H100, {"m": (1, 8)}), True),
        (Query(PLAIN, H100, {"n": (1, 4096)}), False),
        (Query(PLAIN, H100, {"m": (1, 8), "n": (1, 4096)}), False),
        (Query(EXPERTS, H100, {}), False),
        (Query(PLAIN, CPU, {}), False),
    ],
)
def test_the_policy_of_a_query(query, confirms):
    assert acceptance.policy_for(query, ASKED).confirm is confirms
    assert (acceptance.confirm_rejection(query, ASKED) is None) is confirms
    assert not acceptance.policy_for(query, Policy(confirm=False)).confirm
    assert acceptance.policy_for(query, Policy()) == Policy()


def test_no_source_reads_the_policy():
    modules = {path.stem: path.read_text() for path in Path(lookup.__file__).parent.glob("*.py")}
    readers = {name for name, text in modules.items() if re.search(r"\.policy\b|on_miss|confirming", text)}
    assert readers <= {"__init__", "ask"}


@pytest.mark.parametrize(("split", "splits"), [("", False), (" split_k=3", True)])
def test_a_kernel_without_its_optional_split_does_not_split_the_sum(split, splits):
    assert splits_reduction(Config.parse(GROUPED.format(split))) is splits
