"""Measuring: operands, references, tolerances, and a backend per kind of device."""
