"""`python -m benchmarks.offtable`."""

from benchmarks.command import run
from benchmarks.offtable import TOOLS

if __name__ == "__main__":
    run("benchmarks.offtable", TOOLS)
