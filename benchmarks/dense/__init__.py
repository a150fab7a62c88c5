"""Dense GEMMs of current models: the preset that tables are built from, and the figures on samples that no preset
lists. Run from the repository root."""

from benchmarks.command import Tool

TOOLS = (Tool("preset", "Write the preset `dense` from the layers of current models."),)
