"""`python -m benchmarks.torch`."""

from benchmarks.command import run
from benchmarks.torch import TOOLS

if __name__ == "__main__":
    run("benchmarks.torch", TOOLS)
