"""What the other packages agree on: a build's request, report and progress, and the interface of a backend."""
