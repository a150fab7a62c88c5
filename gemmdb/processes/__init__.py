"""Isolated processes: a crash, a hang or an out-of-memory ends one of them, and nothing else."""
