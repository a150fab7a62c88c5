"""Completions of the shell: what bash and zsh are told, and what they ask."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

MAIN = [sys.executable, "-c", "from gemmdb.cli.app import main; main()"]


def asked(**environment: str) -> list[str]:
    """The lines of an answer to a shell."""
    done = subprocess.run(MAIN, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(("words", "place", "found"), [
    ("gemmdb loo", "1", ["lookup"]), ("gemmdb tables pu", "2", ["pull", "push"]),
    ("gemmdb coverage --js", "2", ["--json"]), ("gemmdb zzz", "1", []),
])  # fmt: skip
def test_bash_completes_commands_and_options(words, place, found):
    assert asked(_GEMMDB_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=place) == found


def test_zsh_completes_commands_with_their_help():
    text = " ".join(asked(_GEMMDB_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="gemmdb cov"))
    assert '"coverage"' in text
    assert "Show how much of a recorded workload" in text


@pytest.mark.parametrize(("shell", "word"), [("bash", "_gemmdb_completion"), ("zsh", "#compdef")])
def test_the_script_of_a_shell(shell, word):
    assert word in asked(_GEMMDB_COMPLETE=f"source_{shell}")


def test_the_script_is_shown_by_an_option(gemmdb):
    assert gemmdb("--show-completion").code in (0, 1)  # 1: the parent is no shell.


class Shell:
    """An interactive shell at a terminal."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._terminal, self._kept = pty.openpty()
        # The first terminal that the leader of a session opens is its own.
        name = os.ttyname(self._kept)
        opened = f'exec "$@" <{name} >{name} 2>&1'
        self._process = subprocess.Popen(["sh", "-c", opened, "sh", *command], env=environment, start_new_session=True)

    def type(self, keys: str, until: str) -> str:
        """Press the keys, and return what the terminal shows from there on, once it shows `until`."""
        os.write(self._terminal, keys.encode())
        shown, end = "", time.monotonic() + 60
        while until not in shown:
            assert time.monotonic() < end, shown
            if select.select([self._terminal], [], [], 0.1)[0]:
                shown += os.read(self._terminal, 4096).decode(errors="replace")
        return shown

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._kept)
        os.close(self._terminal)


@pytest.mark.parametrize(("name", "options", "setup"), [
    ("bash", ["--norc", "--noprofile", "-i"], ""), ("zsh", ["-f", "-i"], "autoload -U compinit; compinit -u; "),
])  # fmt: skip
def test_a_shell_completes_what_is_typed(tmp_path: Path, name, options, setup):
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name}")
    gemmdb = tmp_path / "gemmdb"
    gemmdb.write_text(f"#!{sys.executable}\nfrom gemmdb.cli.app import main\nmain()\n")
    gemmdb.chmod(0o755)
    path = os.pathsep.join((str(tmp_path), os.environ["PATH"]))
    shell = Shell([name, *options], {**os.environ, "PATH": path, "HOME": str(tmp_path), "TERM": "dumb"})
    try:
        shell.type(f'{setup}eval "$(_GEMMDB_COMPLETE=source_{name} gemmdb)"; echo rea""dy\n', "ready")
        shell.type("gemmdb cover\t", "gemmdb coverage ")
        shell.type("--js\t", "--json ")
    finally:
        shell.close()
