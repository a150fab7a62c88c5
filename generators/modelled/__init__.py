"""Tables for GPUs that this machine lacks, and the marks of a modelled row."""

from __future__ import annotations

from gemmdb.table.measurement import Protocol

PROTOCOL = Protocol("model", "cold", 1, 1, version=1)
"""Protocol of every modelled row. The version rises with the model."""
CUDA = "13.0"
"""CUDA version of the rows that the model was fitted to. ATen's expected times are those of its cuBLAS."""
