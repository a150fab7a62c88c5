"""Dense GEMMs of current models: the preset that tables are built from, and the figures on samples that no preset
lists. Run from the repository root."""

from benchmarks.command import Tool

TOOLS = (
    Tool("preset", "Write the preset `dense` from the layers of current models."),
    Tool("sample", "Draw GEMMs that no preset and no shipped table lists."),
    Tool("measure", "Time a sample in default mode, with gemmdb, and by cuBLASLt's heuristics.", gpu=True),
    Tool("report", "Print the figures of `measure`."),
    Tool("rows", "Print what a build gains over ATen, by class of M, from its archives."),
    Tool("between", "Print whether a kernel of a size is faster than ATen with fewer rows, from archives."),
    Tool("ranking", "Print what rankings of cuBLASLt's algorithms are worth on held-out problems."),
    Tool("explored", "Print what kinds of kernels hold over ATen, from the lines of an exploration."),
)
