"""The parts of tuning that need no GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gemmdb.errors import InputError
from gemmdb.generators.vllm import tune
from gemmdb.generators.vllm.layers import Linear


def test_a_search_ends_where_another_step_as_long_as_the_last_would_exceed_its_time(monkeypatch):
    clock = iter([100.0, 103.0, 105.0, 108.0])
    monkeypatch.setattr(tune, "monotonic", lambda: next(clock))
    more = tune.Deadline(110.0, last=99.0)
    assert [more() for _ in range(4)] == [True, True, True, False]


@pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without a GPU")
def test_without_a_gpu_nothing_is_written(tmp_path):
    with pytest.raises(InputError, match="needs an NVIDIA GPU"):
        tune.tune(Linear(256, 256), (1,), tmp_path / "configs", 60.0, lambda words, left_s: None)
    assert not (tmp_path / "configs").exists()
