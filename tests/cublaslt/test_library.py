"""The cuBLASLt of the process: found once torch has loaded it, whenever it is asked for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gemmdb.cublaslt import library


@pytest.fixture
def there(monkeypatch):
    """The names of the libraries that the process has loaded."""
    names: list[str] = []

    def opened(name, mode):
        if name not in names:
            raise OSError(name)
        return SimpleNamespace(name=name, cublasLtGetVersion=lambda: 130_100)

    monkeypatch.setattr(library, "_found", [])
    monkeypatch.setattr(library, "_declared", lambda found: found)
    monkeypatch.setattr(library.ctypes, "CDLL", opened)
    return names


def test_it_is_found_after_it_was_asked_for_in_vain(there):
    assert (library.loaded(), library.version()) == (None, 0)
    there.append("libcublasLt.so.12")
    assert library.loaded().name == "libcublasLt.so.12"
    assert library.version() == 130_100


def test_it_stays_the_same(there):
    there.append("libcublasLt.so.12")
    first = library.loaded()
    there.append("libcublasLt.so.13")
    assert library.loaded() is first
