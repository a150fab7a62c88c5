"""A build: problems, candidates, the race, and the rows that come of it; resumable."""
