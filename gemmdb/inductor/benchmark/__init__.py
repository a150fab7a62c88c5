"""Timing candidates during a compile: live tuning and confirming."""
