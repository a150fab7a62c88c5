"""`gemmdb report`: the page that it writes, and what it says of files that it cannot take."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

needs_plotly = pytest.mark.skipif(
    importlib.util.find_spec("plotly") is None, reason="plotly is not installed: pip install 'gemmdb[report]'"
)


@needs_plotly
def test_it_writes_a_page_beside_the_caller(gemmdb: Callable[..., Any], table: Path, workload: Path) -> None:
    done = gemmdb("report", str(table))
    assert (done.code, done.out) == (0, "mine-report.html\n")
    assert "MiB" in done.err
    assert "<title>mine.db - gemmdb</title>" in Path("mine-report.html").read_text()
    done = gemmdb("report", str(workload), "-o", "page.html")
    assert (done.code, done.out) == (0, "page.html\n")
    assert '"kind":"workload"' in Path("page.html").read_text()


@needs_plotly
def test_the_file_itself_is_never_overwritten(gemmdb: Callable[..., Any], table: Path) -> None:
    before = table.read_bytes()
    done = gemmdb("report", str(table), "--out", str(table))
    assert done.code == 2
    assert "is the file that the report is about" in done.err
    assert table.read_bytes() == before


@needs_plotly
@pytest.mark.parametrize("content", [None, b"", b"SQLite format 3\0", b"\xff\xfe", b"{}", b"words"])
def test_any_other_file_is_one_line_on_stderr(
    gemmdb: Callable[..., Any], environment: object, content: bytes | None
) -> None:
    path = Path("some.file")
    if content is not None:
        path.write_bytes(content)
    done = gemmdb("report", str(path))
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert "some.file" in done.err
    assert not Path("some-report.html").exists()


def test_what_is_missing_is_said_with_the_remedy(
    gemmdb: Callable[..., Any], table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "plotly" else real(name, *rest)
    )
    done = gemmdb("report", str(table))
    assert (done.code, done.err) == (2, "gemmdb: a report needs plotly: pip install 'gemmdb[report]'\n")
