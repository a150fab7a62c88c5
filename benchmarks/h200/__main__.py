"""`python -m benchmarks.h200`."""

from benchmarks.command import run
from benchmarks.h200 import TOOLS

if __name__ == "__main__":
    run("benchmarks.h200", TOOLS)
