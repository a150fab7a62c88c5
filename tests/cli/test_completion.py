"""Completions of the shell: what bash and zsh are told, and what they ask."""

import os
import subprocess
import sys

import pytest

from gemmdb.cli.app import run

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


@pytest.mark.parametrize(("shell", "line"), [
    ("bash", "complete -o default -F _gemmdb_completion gemmdb"), ("zsh", "#compdef gemmdb"),
])  # fmt: skip
def test_the_scripts_are_shown(shell, line, capfd):
    assert run(["--show-completion", shell]) == 0
    assert line in capfd.readouterr().out
