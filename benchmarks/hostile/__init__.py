"""Damaged and hostile files: what gemmdb makes of them. No GPU is needed. Run from the repository root."""

from benchmarks.command import Tool

TOOLS = (
    Tool("damage", "Cut tables off and flip their bits: a clear error or the right answer."),
    Tool("least", "How close the rows of all archives come to the least time that counts as possible."),
    Tool("fuzz", "Mutate tables, canonical texts, files to import and workloads: rows or an error of one line."),
)
