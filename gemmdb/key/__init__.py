"""The key of a table: what a problem is, in one canonical text. Standard library only."""
