"""docs/contributing/kernel.md: its kernel, registered as it says, is rendered, legal, carried out and tried."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from kit.pages import blocks, run

from gemmdb.errors import InputError
from gemmdb.generators.measure.cuda import render, space
from gemmdb.kernels import menus, triton
from gemmdb.kernels.config import Config
from gemmdb.kernels.registry import KERNELS
from gemmdb.key.problem import Problem

GUIDE, NAME, MENU = "contributing/kernel.md", "gemmdb.kernels.triton.plain", "gemmdb.kernels.menus.plain"
PLAIN = {"block_m": 64, "block_n": 64, "block_k": 64, "warps": 4, "stages": 3}


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The kernel of the guide, its files where the guide puts them, below a folder of the test."""
    for block in blocks(GUIDE):
        if block.name not in ("", "check"):
            path = tmp_path / block.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code)
    monkeypatch.setattr(triton, "__path__", [*triton.__path__, str(tmp_path)])
    monkeypatch.setattr(menus, "__path__", [*menus.__path__, str(tmp_path / "menus")])
    module = importlib.import_module(NAME)
    monkeypatch.setitem(KERNELS, ("triton", "plain"), module.KERNEL)
    monkeypatch.setitem(space.MENUS, "plain", importlib.import_module(MENU).MENU)
    yield module
    for name in (NAME, MENU):
        sys.modules.pop(name)
    render.plan.cache_clear()
    render._template.cache_clear()


@pytest.mark.usefixtures("plain")
def test_what_the_guide_says_holds() -> None:
    pytest.importorskip("torch", reason="the integration's legality is asked for")
    run(GUIDE, "check")


def test_without_its_record_a_config_cannot_name_it() -> None:
    with pytest.raises(InputError, match="unknown kernel"):
        Config.of("triton", "plain", **PLAIN)


@pytest.mark.usefixtures("plain")
def test_a_parameter_outside_its_domain_is_refused() -> None:
    with pytest.raises(InputError, match="block_m=48 is not in"):
        Config.of("triton", "plain", **PLAIN | {"block_m": 48})


@pytest.mark.usefixtures("plain")
def test_the_rendered_kernel_is_python_with_its_constants() -> None:
    problem = Problem.gemm("addmm", m=100, n=300, k=500)
    unit = render.plan(problem, Config.of("triton", "plain", **PLAIN)).launches[0].unit
    function = next(node for node in ast.parse(unit.source).body if isinstance(node, ast.FunctionDef))
    assert [argument.arg for argument in function.args.args][:4] == ["A", "B", "bias", "out"]
    assert "BLOCK_M: tl.constexpr = 64\n" in unit.source
    assert (unit.warps, unit.stages) == (4, 3)


@pytest.mark.usefixtures("plain")
def test_it_compiles() -> None:
    pytest.importorskip("triton", reason="needs triton, which compiles without a GPU")
    from gemmdb.generators.measure.cuda.compilers import compile_unit

    problem = Problem.gemm("mm", m=100, n=300, k=500)
    unit = render.plan(problem, Config.of("triton", "plain", **PLAIN)).launches[0].unit
    assert compile_unit(unit, 90).failure == ""
