"""What a user can see of a compile: the journal, summaries, reports, recordings."""
