"""Workload files: the GEMMs that a program compiles, one JSON object per line."""
