"""Which device a build measures for a workload."""

import json
from dataclasses import replace

import pytest
from kit.devices import H200

from gemmdb.devices import detect
from gemmdb.errors import InputError
from gemmdb.generators.build import target
from gemmdb.generators.build.build import BuildRequest, build
from gemmdb.key.problem import Problem
from gemmdb.table.reader import Table
from gemmdb.workload import entries

PROBLEM = Problem.gemm("mm", m=4, n=64, k=64, dtype="fp32")


@pytest.fixture
def cpu(monkeypatch):
    """This machine's CPU with two threads, no GPU beside it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(detect, "cuda", lambda index=0: None)
    return detect.cpu()


@pytest.fixture
def recorded(tmp_path):
    """Write a workload in which each of the given devices ran a GEMM."""

    def write(*devices):
        path = tmp_path / "workload.jsonl"
        entries.append(path, [entries.Entry(PROBLEM, device=device.text if device else "") for device in devices])
        return str(path)

    return write


@pytest.mark.parametrize("arch", ["cpu", "native"])
def test_the_threads_of_the_workload_are_taken(cpu, recorded, arch):
    assert target.choose(arch, recorded(replace(cpu, units=1))) == (replace(cpu, units=1), ())
    assert target.choose(arch, None) == (cpu, ())


def test_a_workload_without_devices_and_a_shapes_file_leave_the_device_alone(cpu, recorded, tmp_path):
    assert target.choose("cpu", recorded(None)) == (cpu, ())
    path = tmp_path / "shapes.json"
    path.write_text(json.dumps({"problems": [{"op": "mm", "m": 1, "n": 8, "k": 8}]}, indent=2))
    assert target.choose("cpu", str(path)) == (cpu, ())


def test_other_devices_are_a_warning(cpu, recorded):
    device, (warning,) = target.choose("cpu", recorded(cpu, replace(cpu, units=1), H200))
    assert device == cpu
    assert f"names {cpu.sku} with 1 threads, NVIDIA H200 too" in warning
    device, (warning,) = target.choose("cpu", recorded(replace(cpu, sku="Another CPU")))
    assert device == cpu
    assert "Another CPU" in warning


def test_what_cannot_be_told_is_an_error(cpu, recorded, monkeypatch):
    several = recorded(replace(cpu, units=1), replace(cpu, units=4))
    with pytest.raises(InputError, match="recorded with 1 and 4 threads: set OMP_NUM_THREADS"):
        target.choose("cpu", several)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert target.choose("cpu", several)[0].units == 4
    monkeypatch.setattr(detect, "cuda", lambda index=0: H200)
    with pytest.raises(InputError, match="pass --arch cpu or --arch sm90"):
        target.choose("native", several)


def test_a_device_that_is_none_names_its_line(cpu, tmp_path):
    path = tmp_path / "workload.jsonl"
    path.write_text(json.dumps({"problem": PROBLEM.text, "device": "device nonsense"}))
    with pytest.raises(InputError, match=r"workload\.jsonl:1"):
        target.choose("cpu", str(path))


@pytest.mark.usefixtures("vector_units")
@pytest.mark.slow
def test_a_build_measures_with_the_threads_of_the_workload(cpu, recorded, tmp_path):
    pytest.importorskip("torch")
    one = replace(cpu, units=1)
    out = tmp_path / "table.db"
    # ATen is enough.
    report = build(BuildRequest(arch="cpu", shapes=recorded(one, H200), out=out, deny="cpp", every=True))
    assert report.device == one
    assert "NVIDIA H200" in report.warnings[0]
    with Table.open(out) as table:
        assert table.verdict(PROBLEM, one) is not None
