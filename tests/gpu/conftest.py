"""GPU tests are skipped, visibly, where there is no GPU to run them on. What they share: configs, fixtures, helpers."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Measurement, Protocol, Status, Times

# Before torch is imported: parts of Inductor read it once.
if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="inductor-")
    atexit.register(shutil.rmtree, os.environ["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)

Make = Callable[..., Config]
BASES: dict[str, dict[str, str | int]] = {
    "tile": {
        "block_m": 16, "block_n": 64, "block_k": 64, "group_m": 8, "split_k": 1, "reduce": "none", "swap": 0,
        "load": "pointer", "dequant": "cast", "warps": 4, "stages": 3,
    },
    "gemv": {"block_n": 8, "block_k": 256, "unroll": 1, "dequant": "cast", "warps": 4, "stages": 3},
    "narrow": {
        "block_m": 16, "block_n": 64, "block_k": 64, "split_k": 1, "swap": 0, "stagger": 1, "rows": "mask",
        "dequant": "cast", "warps": 4, "stages": 3,
    },
    "persistent": {
        "block_m": 64, "block_n": 128, "block_k": 64, "group_m": 8, "swap": 0, "dequant": "cast", "resident": 1,
        "warps": 4, "stages": 3,
    },
}  # fmt: skip
"""A small config of each kernel: what a test does not name."""


@pytest.fixture
def make() -> Make:
    """Configs by kernel, with the parameters that differ from its base."""
    return lambda kernel, **changes: Config.of("triton", kernel, **{**BASES[kernel], **changes})


@pytest.fixture
def config(request: pytest.FixtureRequest, make: Make) -> Config:
    """The config of an indirect parameter: a kernel and what differs from its base."""
    kernel, changes = request.param
    return make(kernel, **changes)


@pytest.fixture
def clean() -> Iterator[None]:
    """Nothing enabled, nothing cached, no graph from an earlier test. Inductor pads nothing: it would decide that by a
    benchmark, before our passes see the product."""
    import torch
    import torch._inductor.config as inductor

    import gemmdb.inductor

    torch._dynamo.reset()
    torch.manual_seed(0)
    gemmdb.inductor.disable()
    gemmdb.inductor.reset_stats()
    with inductor.patch(fx_graph_cache=False, compile_threads=1, shape_padding=False):
        yield
    gemmdb.inductor.disable()
    torch.set_float32_matmul_precision("highest")


def anew() -> None:
    """Forget the graphs and products so far, within a test."""
    import torch

    import gemmdb.inductor

    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()


def rand(*sizes: int, dtype: str = "bfloat16") -> Any:
    """Normally distributed, on the GPU."""
    import torch

    return torch.randn(*sizes, device="cuda").to(getattr(torch, dtype))


def ints(*sizes: int) -> Any:
    """Uniform int8, on the GPU."""
    import torch

    return torch.randint(-127, 128, sizes, device="cuda", dtype=torch.int8)


def compiled(model: Callable[..., Any], *inputs: Any, config: Config, **how: Any) -> tuple[Any, str]:
    """What the model returns when all its products take `config`, and the code that Inductor made."""
    import torch
    from torch._inductor.utils import run_and_get_code

    import gemmdb.inductor

    with gemmdb.inductor.force(config):
        result, codes = run_and_get_code(torch.compile(model, **how), *inputs)
    stats = gemmdb.inductor.stats()
    assert (stats["benchmarked"], stats["errors"]) == (0, [])
    return result, "\n".join(codes)


def served() -> list[str]:
    """The configs that were lowered, one per product."""
    import gemmdb.inductor

    entries = gemmdb.inductor.stats()["products"]
    return [entry["config"] for entry in entries for _ in range(entry["count"])]


def close(found: Any, wanted: Any, tolerance: float = 0.02) -> None:
    """Equal within `tolerance` times the largest value."""
    assert found.shape == wanted.shape
    if wanted.numel():
        found, wanted = found.detach().double(), wanted.detach().double()
        assert (found - wanted).abs().max() <= tolerance * wanted.abs().max()


def table(path: Path, times: Mapping[Problem, Mapping[Config, float]]) -> Path:
    """A table about this GPU: microseconds by problem and config; ATen takes 100."""
    from gemmdb.devices import detect
    from gemmdb.key.toolchain import installed
    from gemmdb.table.writer import Store

    device, toolchain, protocol = detect.cuda(), installed("cuda"), Protocol("graph", "cold", 10, 25, version=2)
    assert device is not None
    assert toolchain is not None
    with Store.open(path) as store:
        for problem, known in times.items():
            store.add(
                Measurement(
                    problem, config, device, protocol, toolchain, "test", Status.OK, Times(us, us, us, 25, 100.0)
                )
                for config, us in {ATEN: 100.0, **known}.items()
            )
        store.refresh()
    return path


@pytest.fixture
def kit() -> SimpleNamespace:
    """The helpers of this file, by name. `alone`: no other process of this test run uses the GPU."""
    return SimpleNamespace(
        anew=anew, rand=rand, ints=ints, compiled=compiled, served=served, close=close, table=table,
        alone="PYTEST_XDIST_WORKER" not in os.environ,
    )  # fmt: skip


@functools.cache
def _reason() -> str:
    try:
        import torch
        import triton  # noqa: F401
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


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return Unavailable.from_parent(parent, path=module_path) if _reason() else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)
