"""Offline phase: shapes, candidates, benchmarks, verification, storage."""
