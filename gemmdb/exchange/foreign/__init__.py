"""Readers of other programs' tuning results: what they measured becomes rows, and what they leave open is asked for."""
