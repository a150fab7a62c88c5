"""Resumable builds: problems, candidates, the race, and the resulting rows."""
