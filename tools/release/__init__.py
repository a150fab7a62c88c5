"""What makes the tables and the cost model of a release. Run from the repository root; no tool needs a GPU."""

from benchmarks.command import Tool

TOOLS = (
    Tool("ship", "Rebuild the shipped H200 table from the committed timings."),
    Tool("modelled", "Rebuild the shipped tables of the A100, the L4 and the B200 from the cost model."),
    Tool("refit", "Fit the cost model to new rows, and score everything off the table again."),
)
