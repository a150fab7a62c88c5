"""Whole table files: merge, compare, verify, pack, archive."""
