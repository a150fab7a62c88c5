"""Lowering: turn the config of a Decision into a kernel in Inductor's output code."""
