"""Known GPUs, and what a wrong name may have meant."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdb.devices import registry

NAMES = [text for device in registry.KNOWN for text in (device.sku, device.arch)]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("H200", ["NVIDIA H200"]),
        ("h20", ["NVIDIA H20"]),
        ("a100", ["NVIDIA A100 80GB PCIe", "NVIDIA A100-PCIE-40GB", "NVIDIA A100-SXM4-40GB"]),
        ("RTX-4090", ["NVIDIA GeForce RTX 4090"]),
        ("sm_90", ["sm90"]),
        ("NVIDIA H2000", ["NVIDIA H200", "NVIDIA H20", "NVIDIA B200"]),
        ("", []),
        ("-", []),
        ("abacus", []),
    ],
)
def test_names_that_a_wrong_name_may_stand_for(name, meant):
    assert registry.similar(name, NAMES) == meant


@given(st.text(max_size=200))
def test_only_known_names_are_suggested(name):
    found = registry.similar(name, NAMES)
    assert len(found) <= 3
    assert set(found) <= set(NAMES)
