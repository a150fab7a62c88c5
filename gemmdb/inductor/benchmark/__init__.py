"""Benchmarks during a compile: live tuning, confirmation and horizontal fusion."""
