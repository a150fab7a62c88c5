"""Rows hold while the template that they were measured with is the present one."""

import hashlib
from importlib import metadata
from pathlib import Path

import pytest
from kit.gpu import make

from gemmdb.kernels import inductor, triton
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.registry import KERNELS

TILE = {"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "stages": 3, "warps": 4}
MM = Config.of("triton", "inductor_mm", **TILE)
TMA = Config.of("triton", "inductor_persistent_tma", **TILE)


def test_the_digest_of_inductors_template_is_that_of_its_file() -> None:
    folder = Path(str(metadata.distribution("torch").locate_file("torch/_inductor/kernel/templates")))
    for config, name in ((MM, "triton_mm"), (TMA, "triton_persistent_tma_mm")):
        wanted = hashlib.sha256((folder / f"{name}.py.jinja").read_bytes()).hexdigest()[:16]
        assert config.digest() == wanted
        assert config.is_current(wanted)
        assert not config.is_current("0" * 16)


def test_the_digest_names_what_torch_renders() -> None:
    mm = pytest.importorskip("torch._inductor.kernel.mm_common")
    text = mm.load_kernel_template("triton_mm")
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == MM.digest()


def test_torch_2_11_and_later_render_the_same_kernels() -> None:
    for config in (MM, TMA):
        olds = [old for old, new in inductor.EQUIVALENT.items() if new == config.digest()]
        for old in olds:
            assert config.is_current(old)
    assert MM.is_current("d4b90a54b960e7b3") == MM.is_current("d99842e466803e2d")


def test_without_torch_a_row_is_not_known_to_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    inductor.digest.cache_clear()
    monkeypatch.setattr(metadata, "distribution", missing)
    try:
        assert MM.digest() == ""
        assert not MM.is_current("d4b90a54b960e7b3")
    finally:
        inductor.digest.cache_clear()


def test_our_own_templates_and_kernels_without_one() -> None:
    tile = make("gemv")  # fmt: skip
    assert tile.digest() == triton.digest("gemv")
    assert ATEN.digest() == ""
    assert ATEN.is_current("anything")
    assert tile.is_current("")


def test_rows_of_groups_from_before_they_took_fp8_still_hold() -> None:
    assert make("grouped").is_current("2b822f06dd6f893e")
    assert not make("grouped").is_current("2b822f06dd6f893f")


def test_each_kernel_of_ours_knows_its_former_sources() -> None:
    """They share macros, so that a change to one of them changes the digests of all. A kernel that did not know lost
    its rows at the next release of the table."""
    ours = [kernel for kernel in KERNELS.values() if kernel.template is not None]
    assert len(ours) >= 9
    assert all(kernel.equivalent is triton.EQUIVALENT for kernel in ours)
