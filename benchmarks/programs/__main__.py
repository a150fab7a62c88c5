"""`python -m benchmarks.programs`."""

from benchmarks.command import run
from benchmarks.programs import TOOLS

if __name__ == "__main__":
    run("benchmarks.programs", TOOLS)
