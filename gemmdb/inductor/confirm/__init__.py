"""Confirming: an answer that was not measured for this very problem is timed beside ATen before it is served."""
