"""Ways in: the backend, sessions, and the graph passes that start everything else."""
