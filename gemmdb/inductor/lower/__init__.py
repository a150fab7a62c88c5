"""Lowering: the config of a Decision becomes a kernel in Inductor's output code."""
