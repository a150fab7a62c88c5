"""Readers of other programs' tuning results: what they measured becomes rows; what they leave open the caller says."""
