"""The shipped tables, with their provenance in `manifest.json`."""
