"""Why kernels that win in a table may lose in a program whose operands stay in the cache."""

from gemmdb.cli import cached, compare
from gemmdb.devices import registry
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

SMALL = Problem.gemm("mm", m=16, n=1024, k=256, dtype="fp32")
CPU = Device("cpu", "cpu", "Example CPU", 2, isa="avx2")


def test_operands_that_fit_into_the_cache_are_named():
    """16 x 256, 256 x 1024 and 16 x 1024 elements of 4 bytes are 1.08 MiB."""
    assert cached.hint([(SMALL, 2)], 2**22).startswith(
        "its products move 2.2 MiB in all, which stays in this CPU's cache"
    )
    assert cached.hint([(SMALL, 1)], SMALL.bytes) != ""
    assert cached.hint([(SMALL, 4)], 2**22) == cached.hint([(SMALL, 1)], SMALL.bytes - 1) == cached.hint([]) == ""


def test_it_is_said_of_cpus_only(monkeypatch):
    monkeypatch.setattr(cached, "last_level_cache_bytes", lambda: 2**25)
    asked = {"problem": SMALL.text, "count": 2, "device": CPU.text}
    assert "cold caches" in compare._in_cache([asked])
    assert compare._in_cache([asked, {**asked, "device": registry.find("NVIDIA H200").text}]) == ""
