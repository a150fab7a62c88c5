"""Decisions for the GEMMs of a compile, and their outcomes."""
