"""What commands print on a terminal, and that it stays off it what it is: a pseudo-terminal of 80 and 120 columns."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

import pytest

from gemmdb.cli import terminal
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are of Unix")
ANSI = re.compile(r"\x1b\[\d+m")


SEVERAL = """
import json, sys
from gemmdb.cli.app import run
for arguments in json.loads(sys.argv[1]):
    run(arguments)
    print(end="\\0", flush=True)
"""


def on_terminal(columns: int, *arguments: str) -> str:
    """What `gemmdb ARGUMENTS` prints on a terminal that wide, with "\\n" at the ends of lines."""
    return _printed(columns, ["-m", "gemmdb", *arguments])


def each_on_terminal(columns: int, commands: list[list[str]], **environ: str) -> list[str]:
    """As `on_terminal` for each of the commands, all in one process."""
    *found, rest = _printed(columns, ["-c", SEVERAL, json.dumps(commands)], **environ).split("\0")
    assert (len(found), rest) == (len(commands), "")
    return found


def _printed(columns: int, python: list[str], **environ: str) -> str:
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, *python], stdout=theirs, stderr=subprocess.DEVNULL,
        env={**inherited, "TERM": "xterm", **environ},
    )  # fmt: skip
    os.close(theirs)
    printed = b""
    with suppress(OSError):  # What Linux answers once the other end is closed.
        while piece := os.read(ours, 65536):
            printed += piece
    os.close(ours)
    process.wait(timeout=60)
    return printed.decode().replace("\r\n", "\n")


@pytest.fixture
def commands(table: Path, workload: Path, flags: list[str]) -> list[list[str]]:
    return [["tables"], ["coverage", str(workload)], ["explain", *flags], ["show", str(table)]]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_has_its_width_and_colours_unless_no_color_is_set(commands: list[list[str]], columns: int) -> None:
    coloured, plain = each_on_terminal(columns, commands), each_on_terminal(columns, commands, NO_COLOR="1")
    for command, text, bare in zip(commands, coloured, plain, strict=True):
        assert "\x1b[" in text, command
        assert bare == ANSI.sub("", text)
        # What is to be copied is one line, which the terminal itself breaks.
        lines = [line for line in bare.splitlines() if not line.startswith("problem ")]
        assert all(terminal.cells(line) <= columns for line in lines), text


def test_a_file_gets_neither_colours_nor_bars_nor_breaks(gemmdb, commands: list[list[str]], monkeypatch) -> None:
    texts = [gemmdb(*command).out for command in commands]
    assert not set("".join(texts)) & set("\x1b█▏▎▍▌▋▊▉…")
    assert any("addmm 512x4096x4096 fp32 +bias" in line for line in texts[1].splitlines())
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert [gemmdb(*command).out for command in commands] == texts


def test_bars_show_the_time_of_a_workload(commands: list[list[str]]) -> None:
    text = ANSI.sub("", on_terminal(100, *commands[1]))
    (bar,) = [line for line in text.splitlines() if line.endswith(tuple("0123456789%")) and "misses" in line]
    assert bar.count("░") > bar.count("▓")
    assert "of less time" not in text


def test_wide_breaks_no_line(commands: list[list[str]]) -> None:
    text = ANSI.sub("", on_terminal(60, *commands[1], "--wide"))
    (line,) = [line for line in text.splitlines() if "m=512" in line]
    assert "constant=0" in line


def test_explain_is_short_unless_it_is_wide(gemmdb, table: Path, flags: list[str]) -> None:
    short, wide = gemmdb("explain", *flags).out, gemmdb("explain", *flags, "--wide").out
    assert re.search(r"^  kernel +cpp:packed_gemm$", short, re.MULTILINE)
    assert "50.00 us, 100.00 us with ATen: 2.00x" in short
    assert re.search(r"^  kernel +cpp:packed_gemm blocks_k=0", wide, re.MULTILINE)
    assert str(table) not in short
    assert str(table) in wide
    assert "toolchain" in wide


def test_the_terminal_is_80_columns_where_nobody_says(monkeypatch) -> None:
    monkeypatch.setattr(terminal, "is_terminal", lambda: True)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(shutil.os, "get_terminal_size", lambda *_: os.terminal_size((0, 0)))
    assert terminal.width() == 80


def test_a_reason_that_rows_share_stands_once(tmp_path: Path) -> None:
    device = Device("cpu", "cpu", "Example CPU", 2, isa="avx2").text
    lines = [
        {"problem": Problem.gemm("mm", m=m, n=64, k=64, dtype="fp32").text, "count": 1, "calls": 9, "device": device}
        for m in (8, 16)
    ]
    path = tmp_path / "alone.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    text = ANSI.sub("", on_terminal(100, "coverage", str(path)))
    assert text.count("gemmdb's CPU kernels need constant weights") == 1
    rows = [line.split() for line in text.splitlines() if "x64x64" in line]
    assert [row[-1] for row in rows] == ["(1)", "(1)"]
    wide = ANSI.sub("", on_terminal(100, "coverage", str(path), "--wide"))
    assert wide.count("gemmdb's CPU kernels need constant weights") == 2
