"""`python -m benchmarks.stress`."""

from benchmarks.command import run
from benchmarks.stress import TOOLS

if __name__ == "__main__":
    run("benchmarks.stress", TOOLS)
