"""Triton's kernels are assembled by the ptxas that Inductor would choose."""

import importlib.util
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemmdb.generators.measure.cuda import compilers


@pytest.fixture
def torch_with(tmp_path, monkeypatch):
    """Pretends that torch lies in a folder, whose `bin/ptxas` has this mode; None for no such file."""

    def make(mode, parent=2):
        setter = tmp_path / compilers.PTXAS_SETTER
        setter.parent.mkdir(parents=True)
        setter.write_text(f'ptxas = Path(__file__).absolute().parents[{parent}] / "bin" / "ptxas"\n')
        (tmp_path / "bin").mkdir()
        if mode is not None:
            path = tmp_path / "bin" / "ptxas"
            path.touch()
            path.chmod(mode)
        spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
        monkeypatch.setattr(importlib.util, "find_spec", {"torch": spec}.get)
        return str(tmp_path / "bin" / "ptxas")

    monkeypatch.setenv(compilers.PTXAS_VARIABLE, "")
    monkeypatch.delenv(compilers.PTXAS_VARIABLE)
    return make


def chosen():
    compilers.choose_ptxas()
    return os.environ.get(compilers.PTXAS_VARIABLE)


def test_that_of_torch(torch_with):
    assert torch_with(0o755) == chosen()


@pytest.mark.parametrize("mode", [None, 0o644])
def test_tritons_own_where_torch_has_none(torch_with, mode):
    torch_with(mode)
    assert chosen() is None


def test_tritons_own_where_torch_looks_elsewhere(torch_with):
    torch_with(0o755, parent=1)
    assert chosen() is None


def test_that_which_the_installed_torch_would_set(torch_with, monkeypatch):
    tasks = pytest.importorskip("torch._inductor.runtime.compile_tasks")
    tasks._set_triton_ptxas_path.cache_clear()
    tasks._set_triton_ptxas_path()
    wanted = os.environ.pop(compilers.PTXAS_VARIABLE, None)
    assert chosen() == wanted
    assert compilers._RELATIVE.search(Path(tasks.__file__).read_text())


def test_what_the_user_names(torch_with, monkeypatch):
    torch_with(0o755)
    monkeypatch.setenv(compilers.PTXAS_VARIABLE, "/opt/ptxas")
    assert chosen() == "/opt/ptxas"


def test_without_torch(torch_with, monkeypatch):
    torch_with(0o755)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert chosen() is None
