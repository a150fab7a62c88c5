"""The GPU presets are what the published dimensions of the models give."""

from importlib import resources

import pytest
from kit.presets import preset

from gemmdb.generators.shapes import architectures, write_presets


@pytest.mark.parametrize("name", write_presets.PRESETS)
def test_the_preset_file_is_what_the_module_writes(name: str) -> None:
    file = resources.files("gemmdb.generators") / "presets" / f"{name}.json"
    assert file.read_text(encoding="utf-8") == write_presets.text(name), (
        "run python -m gemmdb.generators.shapes.write_presets generators/presets"
    )


def test_every_projection_of_a_model_is_there() -> None:
    sizes = {(p.op, p.m, p.n, p.k) for p in preset("llm")}
    for n, k in ((6144, 4096), (4096, 4096), (14336, 4096), (28672, 4096), (4096, 14336), (128256, 4096)):
        assert {("mixed_mm", 1, n, k), ("mm", 2048, n, k), ("int_mm", 32, n, k)} <= sizes


def test_splitting_over_gpus_divides_what_is_split() -> None:
    pairs = architectures.ARCHITECTURES["llama-3-70b"].pairs()
    assert (10240, 8192) in pairs
    assert {(1280, 8192), (8192, 1024), (3584, 8192), (8192, 3584)} <= set(pairs)


def test_int_mm_has_more_rows_than_aten_refuses() -> None:
    for name in write_presets.PRESETS:
        if name != "llm-dense":
            assert all(p.m > 16 and p.n % 8 == p.k % 8 == 0 for p in preset(name) if p.op == "int_mm")
