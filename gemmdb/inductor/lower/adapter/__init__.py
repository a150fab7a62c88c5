"""The only package that touches private parts of Inductor, for the versions of torch in SUPPORTED_TORCH.

Import its modules only after Inductor is loaded: they load the lowering tables. docs/contributing/torch.md lists what
each module touches, and how to support another torch.
"""

SUPPORTED_TORCH = ("2.11", "2.12", "2.13", "2.14", "2.15")
"""Minor releases, oldest first. `make matrix` tests each that can be installed. The docs name the first and last."""
