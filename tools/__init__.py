"""The tools of the maintainers. Nothing of it is installed."""
