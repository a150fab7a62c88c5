"""What makes a release: its tables, cost model and wheel. Run from the repository root; no tool needs a GPU."""

from benchmarks.command import Tool

TOOLS = (
    Tool("ship", "Rebuild the shipped H200 table from the committed timings."),
    Tool("modelled", "Rebuild the shipped tables of the A100, the L4 and the B200 from the cost model."),
    Tool("refit", "Fit the cost model to new rows, and score everything off the table again."),
    Tool("lock", "Resolve what CI installs, and write constraints.txt."),
    Tool("wheel", "Build the wheel of a commit, which is the same bytes each time."),
    Tool("sbom", "Write the bill of materials (SBOM) of a wheel."),
)
