"""Completions of the shell: what bash and zsh are told, and what they ask."""

import os
import subprocess
import sys

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
