"""Tables for GPUs that are not here, from the cost model."""
