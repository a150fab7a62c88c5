"""The versions of torch that the adapter is written for. Importing this module imports no torch."""

SUPPORTED_TORCH = ("2.11", "2.12", "2.13", "2.14", "2.15")
"""Minor releases, oldest first. `make matrix` tests each that can be installed. Documents name the first and last."""
