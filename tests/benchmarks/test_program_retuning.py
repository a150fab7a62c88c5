"""Kernels that coordinate descent has tuned are not tuned again by the process that times a program."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch._inductor.runtime import autotune_cache, triton_heuristics
from torch._inductor.runtime.autotune_cache import AutotuneCache
from torch._inductor.runtime.triton_heuristics import hash_configs

from benchmarks.programs import retuning


def config(block: int, warps: int = 4, **more: Any) -> Any:
    """A Config as Triton has it, without Triton."""
    found = SimpleNamespace(kwargs={"XBLOCK": block}, num_warps=warps, num_stages=1, **more)
    found.pre_hook = None
    return found


META = {"coordinate_descent_tuning": True, "autotune_local_cache": True, "autotune_remote_cache": False}


class Kernel:
    """What `recheck_autotune_cache` uses of a CachingAutotuner that was loaded with a cached graph."""

    def __init__(self, folder: Any, *configs: Any) -> None:
        self.inductor_meta = META
        self.filename = str(folder / "ab" / "kernel.py")
        self.compile_results = [SimpleNamespace(config=one) for one in configs]
        self.fn = SimpleNamespace(fn=None)
        self.compiled: list[Any] = []

    def is_statically_launchable(self) -> bool:
        return True

    def _precompile_config(self, best: Any) -> Any:
        assert self.fn.fn is not None
        self.compiled.append(best.kwargs["XBLOCK"])
        return SimpleNamespace(config=best)

    def load(self) -> list[tuple[int, bool]]:
        """What the kernel starts with in another process: block sizes, and whether they are final."""
        triton_heuristics.CachingAutotuner.recheck_autotune_cache(
            self,
            reload_kernel_from_src=lambda: SimpleNamespace(fn=SimpleNamespace(fn=1)),  # By name, as torch does.
        )
        configs = [result.config for result in self.compile_results]
        return [(one.kwargs["XBLOCK"], getattr(one, "found_by_coordesc", False)) for one in configs]


@pytest.fixture
def tuned(monkeypatch, tmp_path):
    """Keeps a choice for a kernel in Inductor's cache, as a tuned kernel does."""
    monkeypatch.setattr(
        autotune_cache, "Config", lambda kwargs, **how: SimpleNamespace(kwargs=kwargs, pre_hook=None, **how)
    )

    def keep(best: Any, *began: Any) -> Kernel:
        kernel = Kernel(tmp_path, *began)
        cache = AutotuneCache.create(META, kernel.filename, hash_configs(list(began)))
        assert cache is not None
        cache.save(best, 1000, found_by_coordesc=True)
        return kernel

    return keep


@pytest.mark.parametrize(("best", "began", "compiled"), [
    (64, (32,), [64]),  # One choice to begin with, another one found.
    (32, (32,), []),  # It was the best.
    (32, (16, 32), []),
    (64, (16, 32), [64]),
])  # fmt: skip
def test_the_choice_of_coordinate_descent_is_final(
    tuned, best: int, began: tuple[int, ...], compiled: list[int]
) -> None:
    kernel = tuned(config(best), *map(config, began))
    with retuning.once():
        assert kernel.load() == [(best, True)]
    assert kernel.compiled == compiled


def test_a_kernel_that_was_never_tuned_is_left_alone(tmp_path) -> None:
    kernel = Kernel(tmp_path, config(16), config(32))
    before = triton_heuristics.CachingAutotuner.recheck_autotune_cache
    with retuning.once():
        assert kernel.load() == [(16, False), (32, False)]
    assert triton_heuristics.CachingAutotuner.recheck_autotune_cache is before
