"""Inductor's own Triton templates, and ATen on padded operands."""
