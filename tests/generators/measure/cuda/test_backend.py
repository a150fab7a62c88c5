"""The backend of a host's GPUs: only those that are alike work together, each under its own number."""

import pytest

from gemmdb.devices import registry
from gemmdb.generators.effort import named
from gemmdb.generators.measure.cuda import artifacts, backend
from gemmdb.generators.measure.cuda.backend import CudaBackend, working
from gemmdb.key.toolchain import Toolchain

OTHER, WANTED = registry.find("sm80"), registry.find("sm90")


@pytest.fixture
def host(monkeypatch):
    """A host with a GPU of another kind before and between two of the wanted one."""
    gpus = [OTHER, WANTED, OTHER, WANTED]
    monkeypatch.setattr(backend, "cuda", lambda number=0: gpus[number])
    monkeypatch.setattr(backend, "_smi", lambda query: [""] * len(gpus))
    monkeypatch.setattr(backend, "installed", lambda kind: Toolchain(torch="2.11.0", triton="3.6.0"))
    monkeypatch.setattr(CudaBackend, "provenance", lambda self: {})
    monkeypatch.setattr(backend.CudaMeasurer, "start", lambda self, confirms=True: self)


@pytest.mark.parametrize(("device", "gpus"), [(WANTED, [1, 3]), (None, [0, 2])])
def test_workers_are_the_gpus_that_equal_the_device_or_else_the_first(host, device, gpus):
    made = CudaBackend(device)
    assert (made.device, made.workers) == (device or OTHER, 2)
    assert [made.measurer(worker, named("quick", "cuda")).gpu for worker in range(2)] == gpus
    made.close()


def test_who_waits_for_a_measurement_asks_no_slow_tool(host, monkeypatch, tmp_path):
    def slow(query):
        raise AssertionError(f"nvidia-smi {query}")

    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs)\n")
    monkeypatch.setattr(backend, "DRIVER_FILE", version)
    monkeypatch.setattr(backend, "_smi", slow)
    warmed = []
    monkeypatch.setattr(backend.Precompiler, "warm", lambda self, artifact: warmed.append(artifact))
    made = CudaBackend(WANTED)
    assert made.compilers.needs is artifacts.required
    assert made.prompt_measurer(3, named("quick", "cuda")).gpu == 3
    assert made.compilers.needs is artifacts.required_promptly
    assert made.toolchain.driver == "570.86.15"
    assert len(warmed) == 1
    made.close()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\nGCC version: 11.4", "550.54.15"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82  Wed Oct 27", "470.82"),
        ("", ""),
    ],
)
def test_the_driver_that_is_loaded(text, version, monkeypatch, tmp_path):
    path = tmp_path / "version"
    monkeypatch.setattr(backend, "DRIVER_FILE", path)
    assert backend.loaded_driver() == ""
    path.write_text(text)
    assert backend.loaded_driver() == version


LINES = ["0, GPU-aa, 97", "1, GPU-bb, 0", "2, GPU-cc, 5", "3, GPU-dd, [N/A]", "no devices were found", ""]


@pytest.mark.parametrize(
    ("ours", "busy"),
    [
        ({"1", "3"}, ""),
        ({"0"}, "another program keeps GPU 0 busy (97%)"),
        ({"GPU-aa", "GPU-bb", "GPU-cc"}, "another program keeps GPU 0 busy (97%), GPU 2 busy (5%)"),
        ({"7"}, ""),
    ],
)
def test_gpus_that_others_use_are_named(ours: set[str], busy: str) -> None:
    assert working(LINES, ours) == busy


def test_a_host_asks_nvidia_smi_about_its_own_gpus(host, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(backend, "_smi", lambda query: ["0, a, 90", "1, b, 0", "2, c, 90", "3, d, 40"])
    made = CudaBackend(WANTED)
    assert made.busy() == "another program keeps GPU 3 busy (40%)"


def test_without_nvidia_smi_nothing_is_known(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert backend._smi("--query-gpu=index") == []
    assert working([], {"0"}) == ""
