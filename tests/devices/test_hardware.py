"""What is read of this machine, and of its CPU from the texts of other machines."""

import os
import platform

import pytest

from gemmdb.devices import detect
from gemmdb.key.device import Device

ARM = """\
processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd evtstrm aes sve bf16 i8mm
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: {part}
CPU revision\t: 1

processor\t: 1
"""
INTEL = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) 6980P\nflags\t\t: fpu avx2 avx512f amx_bf16\n\nprocessor\t: 1\n"


@pytest.fixture
def cpu(monkeypatch):
    """The Device of a CPU with this /proc/cpuinfo."""

    def read(text):
        monkeypatch.setattr(detect, "_cpuinfo", lambda: detect.parse_cpuinfo(text))
        return detect.cpu(4)

    return read


def test_arm_cpus_are_told_apart(cpu):
    v1, n2 = cpu(ARM.format(part="0xd40")), cpu(ARM.format(part="0xd49"))
    assert (v1.sku, v1.isa) == ("ARM 0x41 0xd40", "neon")
    assert n2.sku == "ARM 0x41 0xd49"


def test_a_cpu_with_a_name_is_called_by_it(cpu):
    assert (cpu(INTEL).sku, cpu(INTEL).isa) == ("Intel(R) Xeon(R) 6980P", "amx")


def test_a_cpu_that_says_nothing_is_called_by_its_machine(cpu):
    assert cpu("").sku in (platform.processor(), platform.machine())


def test_this_machines_cpu(monkeypatch):
    device = detect.cpu(3)
    assert (device.kind, device.arch, device.units) == ("cpu", "cpu", 3)
    assert Device.parse(device.text) == device
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert detect.cpu().units == 5
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert 1 <= detect.cpu().units <= (os.cpu_count() or 1)
    assert detect.last_level_cache_bytes() > 0
