"""`python -m benchmarks.dense`."""

from benchmarks.command import run
from benchmarks.dense import TOOLS

if __name__ == "__main__":
    run("benchmarks.dense", TOOLS)
