"""Importers for other programs' tuning results. Their timings become rows; the caller supplies what the files omit."""
