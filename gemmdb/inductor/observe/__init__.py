"""What a user can see of a compile: journal, summaries, reports, recordings, comparisons."""
