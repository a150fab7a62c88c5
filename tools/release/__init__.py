"""What makes a release: its tables, cost model and distributions. Run from the repository root; no tool needs a GPU."""

from benchmarks.command import Tool

TOOLS = (
    Tool("ship", "Rebuild the shipped H200 table from the committed timings."),
    Tool("modelled", "Rebuild the shipped tables of the A100, the L4 and the B200 from the cost model."),
    Tool("refit", "Fit the cost model to new rows, and score everything off the table again."),
    Tool("lock", "Resolve what CI installs, and write constraints.txt."),
    Tool("build", "Build the source distribution and the wheel of a commit, the same bytes each time."),
    Tool("rehearse", "Check what would be uploaded, and install it as a user would."),
    Tool("sbom", "Write the bill of materials (SBOM) of a wheel."),
)
