"""Isolated processes: a crash, a hang or an out-of-memory error affects only one of them."""
