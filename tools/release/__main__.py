"""`python -m tools.release`."""

from benchmarks.command import run
from tools.release import TOOLS

if __name__ == "__main__":
    run("tools.release", TOOLS)
