"""`gemmdb report`: the page that it writes, and what it says of files that it cannot take."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gemmdb.table.stats import Gain


def test_it_writes_a_page_beside_the_caller(gemmdb: Callable[..., Any], table: Path, workload: Path) -> None:
    done = gemmdb("report", str(table))
    assert (done.code, done.out) == (0, "mine-report.html\n")
    assert "MiB" in done.err
    assert "<title>mine.db - gemmdb</title>" in Path("mine-report.html").read_text()
    done = gemmdb("report", str(workload), "-o", "page.html")
    assert (done.code, done.out) == (0, "page.html\n")
    assert '"kind":"workload"' in Path("page.html").read_text()


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


@pytest.mark.slow
def test_a_program_is_recorded(gemmdb: Callable[..., Any], table: Path) -> None:
    Path("program.py").write_text(
        "import torch\n"
        "model = torch.compile(torch.nn.Linear(8, 12).eval())\n"
        "with torch.no_grad():\n"
        "    for _ in range(3):\n"
        "        model(torch.randn(4, 8))\n"
    )
    done = gemmdb("report", "--", sys.executable, "program.py")
    assert (done.code, done.out) == (0, "program-report.html\n"), done
    assert "1 GEMM, no gain, ATen runs every GEMM: " in done.err
    assert f"what to do: gemmdb tune --dry-run -- {sys.executable} program.py" in done.err
    text = Path("program-report.html").read_text()
    found = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert found["title"].endswith("program.py")
    (product,) = found["products"]
    assert (product["op"], product["m"], product["n"], product["k"], product["calls"]) == ("addmm", 4, 12, 8, 3)
    assert product["reason"]


def test_a_program_that_compiles_nothing_is_said(gemmdb: Callable[..., Any], environment: object) -> None:
    done = gemmdb("report", "--", sys.executable, "-c", "print('nothing')")
    assert done.code == 2
    assert "nothing was recorded" in done.err
    assert not Path("program-report.html").exists()


def test_a_page_without_a_gain_says_what_to_do(gemmdb: Callable[..., Any], workload: Path) -> None:
    done = gemmdb("report", str(workload))
    assert "3 GEMMs, no gain, ATen runs every GEMM: " in done.err
    assert "gemmdb: what to do: gemmdb coverage workload.jsonl\n" in done.err


def test_a_page_claims_no_gain_that_may_be_chance(
    gemmdb: Callable[..., Any], workload: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert " over ATen, weighted by time: " in gemmdb("report", str(workload)).err
    doubtful = property(lambda self: Gain(1.05, 0.97, 1.13))
    monkeypatch.setattr("gemmdb.report.workload.WorkloadReport.expected", doubtful)
    done = gemmdb("report", str(workload))
    assert "3 GEMMs, expected over ATen, weighted by time: no difference, between 0.97x and 1.13x; " in done.err
    assert "what to do: " in done.err
