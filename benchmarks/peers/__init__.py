"""gemmdb's kernels against the kernels of others: each in its authors' packed layout and tuning, timed in turn by the
protocol of the tables. Run from the repository root."""

from benchmarks.command import Tool

TOOLS = (
    Tool("sample", "Draw the GEMMs of each op."),
    Tool("rivals", "List the rivals, and why one cannot run here."),
    Tool("measure", "Time a sample with gemmdb, in default mode, and by each installed rival.", gpu=True),
    Tool("report", "Print the figures of `measure`, losses first."),
)
