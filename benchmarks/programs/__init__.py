"""Programs of real model code, each in default mode, with max-autotune and with gemmdb. Run from the repository root.

The models are those of transformers, torchao, timm and diffusers at their real widths, with few layers and random
weights, so nothing is downloaded. `pip install -e '.[programs]'` installs the packages.
"""

from benchmarks.command import Tool

TOOLS = (
    Tool("list", "Name the programs, and why one cannot run here."),
    Tool("check", "Compare a tiny version of each program with and without gemmdb, on a CPU."),
    Tool("measure", "Time compiling and running of each program, in parts that resume.", gpu=True),
    Tool("kernels", "Name the kernels of a program that differ most between default mode and another way."),
    Tool("states", "Say which state of the cache predicts what kernels save in programs."),
    Tool("report", "Print the tables and the figures of measured programs."),
)
