"""Turning a query into a Decision, and what became of it."""
