"""What gemmdb withstands: processes that are killed, many readers and writers at once, tables of ten million rows.

Run from the repository root. Raw results are in benchmarks/results/faults and benchmarks/results/load.
"""

from benchmarks.command import Tool

TOOLS = (
    Tool("kills", "Kill builds and their workers at random moments, and compare the rows at the end."),
    Tool("cluster-kills", "Kill nodes and workers of a Ray cluster, and the builds over it."),
    Tool("readers", "Look up in one table from 64 processes at once."),
    Tool("compiles", "Compile in 64 processes at once with one table."),
    Tool("building", "Build a table while 8 processes compile against its file."),
    Tool("writers", "Write to one user table from 200 processes at once."),
    Tool("rows", "Make, merge, pack and look up in a table of ten million rows."),
    Tool("scale", "Compute what a public registry of tables would need."),
)
