"""Whole table files: merge, compare, verify, compact, archive."""
