"""`python -m benchmarks.hostile`."""

from benchmarks.command import run
from benchmarks.hostile import TOOLS

if __name__ == "__main__":
    run("benchmarks.hostile", TOOLS)
