"""docs/contributing/gpu.md: its row is enough for lookups, legality and the cost model; so is one of a new arch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kit.pages import run

import gemmdb
from gemmdb.cost.machine import machine
from gemmdb.devices import registry
from gemmdb.errors import InputError
from gemmdb.generators.modelled.space import rank
from gemmdb.key.problem import Problem

GUIDE = "contributing/gpu.md"
PROBLEM = Problem.gemm("mm", m=16, n=4096, k=4096)


def test_what_the_guide_says_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "KNOWN", (*registry.KNOWN, run(GUIDE, "row")["H800"]))
    run(GUIDE, "check")


def test_without_its_row_the_name_is_unknown() -> None:
    gemmdb.refresh()  # A process remembers the devices that other tests added.
    with pytest.raises(InputError):
        gemmdb.lookup(PROBLEM, "NVIDIA H800 PCIe")


def test_a_new_arch_is_a_row_too(monkeypatch: pytest.MonkeyPatch) -> None:
    device = replace(run(GUIDE, "row")["H800"], arch="sm103", sku="NVIDIA Some GPU")
    monkeypatch.setattr(registry, "KNOWN", (*registry.KNOWN, device))
    found = machine(device)
    assert found is not None
    assert (found.capability, found.sms, found.smem) == (103, 114, 227 * 1024)
    assert registry.find("sm103") == device
    assert rank(PROBLEM, device)
