"""Tables for GPUs that are not here, and what marks a modelled row."""

from __future__ import annotations

from gemmdb.table.measurement import Protocol

PROTOCOL = Protocol("model", "cold", 1, 1, version=1)
"""The protocol of every modelled row. The version rises with the model."""
CUDA = "13.0"
"""The CUDA version of the rows that the model was fitted to. ATen's expected times are those of its cuBLAS."""
