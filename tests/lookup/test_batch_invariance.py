"""Which kernels keep one order of summation for every M."""

import pytest

from gemmdb import Config
from gemmdb.lookup.policy_filter import splits_reduction

GROUPED = "triton:grouped block_k=64 block_m=16 block_n=64 flatten=0 load=tma resident=2{} stages=3 swap=0 warps=4"


@pytest.mark.parametrize(("split", "splits"), [("", False), (" split_k=3", True)])
def test_a_kernel_without_its_optional_split_does_not_split_the_sum(split: str, splits: bool) -> None:
    assert splits_reduction(Config.parse(GROUPED.format(split))) is splits
