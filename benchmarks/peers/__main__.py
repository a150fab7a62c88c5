"""`python -m benchmarks.peers`."""

from benchmarks.command import run
from benchmarks.peers import TOOLS

if __name__ == "__main__":
    run("benchmarks.peers", TOOLS)
