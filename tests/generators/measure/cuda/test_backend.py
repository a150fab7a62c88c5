"""The backend of a host's GPUs: only those that are alike work together, each under its own number."""

import pytest

from gemmdb.devices import registry
from gemmdb.generators.effort import named
from gemmdb.generators.measure.cuda import backend
from gemmdb.generators.measure.cuda.backend import CudaBackend
from gemmdb.key.toolchain import Toolchain

OTHER, WANTED = registry.find("sm80"), registry.find("sm90")


@pytest.fixture
def host(monkeypatch):
    """A host with a GPU of another kind before and between two of the wanted one."""
    gpus = [OTHER, WANTED, OTHER, WANTED]
    monkeypatch.setattr(backend, "cuda", lambda number=0: gpus[number])
    monkeypatch.setattr(backend, "_count", lambda: len(gpus))
    monkeypatch.setattr(backend, "installed", lambda kind: Toolchain(torch="2.11.0", triton="3.6.0"))
    monkeypatch.setattr(CudaBackend, "provenance", lambda self: {})
    monkeypatch.setattr(backend.CudaMeasurer, "start", lambda self, confirms=True: self)


def test_lanes_are_the_gpus_that_equal_the_device(host):
    made = CudaBackend(WANTED)
    assert made.workers == 2
    assert [made.measurer(worker, named("quick", "cuda")).gpu for worker in range(2)] == [1, 3]
    assert [made.worker_of(gpu) for gpu in range(4)] == [0, 0, 0, 1]
    made.close()


def test_without_a_device_the_first_gpu_is_it(host):
    made = CudaBackend()
    assert (made.device, made.workers) == (OTHER, 2)
    assert [made.measurer(worker, named("quick", "cuda")).gpu for worker in range(2)] == [0, 2]
    made.close()
