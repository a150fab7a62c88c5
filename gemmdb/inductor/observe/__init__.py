"""User-facing views of a compile: the journal, summaries, reports, recordings."""
