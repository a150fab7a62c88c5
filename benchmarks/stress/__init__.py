"""What gemmdb withstands: processes that are killed, many readers and writers at once, tables of ten million rows.

Run from the repository root. Raw results are in benchmarks/results/faults and benchmarks/results/load.
"""

from benchmarks.command import Tool

TOOLS = (Tool("kills", "Kill builds and their workers at random moments, and compare the rows at the end."),)
