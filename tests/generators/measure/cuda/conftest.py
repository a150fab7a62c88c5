"""What the tests of the GPU generator share; none of them needs a GPU."""

import importlib
import sys
from collections.abc import Callable

import pytest
from kit import gpu
from kit.devices import H200

from gemmdb.kernels.config import Config
from gemmdb.key.device import Device

BASES: dict[str, dict[str, str | int]] = {
    "tile": {"block_k": 128}, "gemv": {"stages": 1}, "narrow": {"block_k": 128},
    "persistent": {"block_m": 128, "block_n": 256, "warps": 8},
}  # fmt: skip


class Make:
    """Configs of our kernels that differ from a base in what is named: `make.tile(swap=1)`."""

    def __getattr__(self, kernel: str) -> Callable[..., Config]:
        return lambda **changes: gpu.make(kernel, **{**BASES.get(kernel, {}), **changes})


@pytest.fixture
def make() -> Make:
    return Make()


@pytest.fixture
def h200() -> Device:
    return H200


ARTIFACTS = """
import dataclasses, os, sys, time
from pathlib import Path
from gemmdb.generators.measure.cuda.artifacts import Built


@dataclasses.dataclass(frozen=True)
class Artifact:
    key: str
    work: str = ""
    log: str = ""
    optional: bool = False

    def build(self, capability):
        what, _, seconds = self.key.partition(" ")
        if what == "die":
            os._exit(3)
        if what == "sleep":
            time.sleep(float(seconds))
        if what == "raise":
            raise OSError("no space left")
        if what == "memory":
            return Built("AcceleratorError: CUDA error: out of memory", 0.25)
        if what == "imports":
            return Built(" ".join(sorted({"torch", "torch._inductor.graph"} & set(sys.modules))), 0.0)
        if self.log:
            self.note("begins")
            time.sleep(0.2)
            self.note("ends")
        return Built("", 0.25, 10**6 if what == "large" else 0)

    def note(self, text):
        with Path(self.log).open("a") as file:
            file.write(f"{self.key} {text}\\n")
"""


@pytest.fixture
def kind(importable, monkeypatch, tmp_path):
    """A class of artifacts that do what their key says."""
    importable("artifacts_of_a_test", ARTIFACTS)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    yield importlib.import_module("artifacts_of_a_test").Artifact
    del sys.modules["artifacts_of_a_test"]
