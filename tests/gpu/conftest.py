"""GPU tests are skipped, visibly, where there is no GPU to run them on. They share these fixtures and kit.gpu."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from kit import gpu as helpers

from gemmdb.kernels.config import Config

# Before torch is imported: parts of Inductor read it once.
if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="inductor-")
    atexit.register(shutil.rmtree, os.environ["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)

Make = Callable[..., Config]


@pytest.fixture
def make() -> Make:
    """Configs by kernel, with the parameters that differ from its base."""
    return helpers.make


@pytest.fixture
def config(request: pytest.FixtureRequest, make: Make) -> Config:
    """The config of an indirect parameter: a kernel and what differs from its base."""
    kernel, changes = request.param
    return make(kernel, **changes)


@pytest.fixture
def cublaslt() -> None:
    """Torch has loaded the library, and no warning was given before."""
    import torch

    from gemmdb.cublaslt import launch, library

    torch.mm(helpers.rand(16, 16), helpers.rand(16, 16))
    assert library.loaded() is not None
    launch._warn.cache_clear()


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing enabled, nothing cached, no graph, no trial and no numerics from an earlier test. Nothing is confirmed
    unless the test says so. Inductor pads nothing: it would decide that by a benchmark, before our passes see the
    GEMM."""
    import torch
    import torch._inductor.config as inductor

    import gemmdb.inductor
    from gemmdb.inductor.benchmark import algorithms, horizontal
    from gemmdb.inductor.benchmark.limits import BUDGET

    monkeypatch.setenv("GEMMDB_CONFIRM", "0")
    for timed in (algorithms, horizontal):
        monkeypatch.setattr(timed, "_KNOWN", {})
    torch._dynamo.reset()
    torch.manual_seed(0)
    gemmdb.inductor.disable()
    gemmdb.inductor.reset_stats()
    BUDGET.clear()
    helpers.default_numerics()
    with inductor.patch(fx_graph_cache=False, compile_threads=1, shape_padding=False):
        yield
    gemmdb.inductor.disable()
    helpers.default_numerics()


@pytest.fixture
def kit() -> ModuleType:
    """The helpers of kit.gpu, by name."""
    return helpers


@functools.cache
def _reason() -> str:
    try:
        import triton  # noqa: F401, I001  the quicker of both to be missing

        import torch
    except ImportError as error:
        return f"needs torch and triton: {error}"
    return "" if torch.cuda.is_available() else "needs an NVIDIA GPU: torch.cuda.is_available() is false"


class Skipped(pytest.Item):
    """Stands for all tests of a module where they cannot run: says why. One item, for there are 1500 of them."""

    def runtest(self) -> None:
        pytest.skip(_reason())

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.name


class Unavailable(pytest.Module):
    """A module whose tests cannot run here. It is imported none the less, which finds what it lacks."""

    def collect(self) -> Iterator[pytest.Item]:
        self.obj  # noqa: B018
        yield Skipped.from_parent(self, name="all tests of this file")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What stands for the tests of a module has no mark: where one is asked for, it would be left out."""
    return True if config.option.markexpr in ("slow", "timed and not slow") and _reason() else None


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return Unavailable.from_parent(parent, path=module_path) if _reason() else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)
