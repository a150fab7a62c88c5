"""Fixtures: a clean Inductor and a clean gemmdb around each test, real tables, and the helpers of kit.inductor."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from kit import inductor as helpers
from kit.devices import H200

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.inductor.benchmark.limits import BUDGET
from gemmdb.inductor.lower import triton
from gemmdb.inductor.lower.adapter import prebuilt_kernels, templates
from gemmdb.inductor.match import extract
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.key.toolchain import Toolchain


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vector_units: None) -> Iterator[None]:
    """Nothing enabled, nothing cached in memory, no table but the test's own, no graph from an earlier test."""
    import torch._inductor.config as config
    from kit.translation_unit import compiled_at_once  # Not above: it fixes where Inductor's cache is.

    for name in [name for name in os.environ if name.startswith("GEMMDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    if not torch.cuda.is_available():  # Also torch's build for CUDA runs no prebuilt kernel then, which it may refuse.
        monkeypatch.setattr(prebuilt_kernels, "running", lambda: Toolchain(torch=torch.__version__))
    torch._dynamo.reset()
    torch.manual_seed(0)
    gemmdb.inductor.disable()
    gemmdb.inductor.reset_stats()
    BUDGET.clear()
    graphs = config.patch(fx_graph_cache=False, freezing=False, max_autotune=False, max_autotune_gemm=False)
    with graphs, compiled_at_once():
        yield
    gemmdb.inductor.disable()


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., Path]:
    """Write a table in which each of the given problem texts is won by a config: table({text: config}, name)."""
    pytest.importorskip("gemmdb.table.catalog")
    store = pytest.importorskip("gemmdb.table.writer")

    def write(winners: Mapping[str, Config], name: str = "table.db") -> Path:
        path = tmp_path / name
        with store.Store.open(path) as opened:
            for text, config in winners.items():
                times = {} if config == helpers.ATEN else {config: 50.0}
                opened.add(helpers.rows(Problem.parse(text), times))
            opened.refresh()
        return path

    return write


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Products are looked up as those of an H200. A kernel is chosen, and what is lowered instead is ATen."""

    def stop(*args: object, **kwargs: object) -> None:
        raise triton.Refused("that far")

    monkeypatch.setattr(extract, "device", lambda of: H200)
    monkeypatch.setattr(templates, "gemm", stop)
    yield
    JOURNAL.drop()


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> object:
    """What `found()` of the test's module returns in a process that pretends to have a GPU."""
    return helpers.found_without_gpu(str(request.path))


@pytest.fixture
def kit() -> ModuleType:
    """The helpers and configs of kit.inductor, by name."""
    return helpers


@pytest.fixture
def captured() -> Iterator[None]:
    """Dynamo takes what depends on data into the graph."""
    from gemmdb.inductor.entry import enable

    enable.install()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield
