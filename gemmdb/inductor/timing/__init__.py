"""Clocks: how a build and confirming take times, on the host and on a GPU. Uses public torch alone."""
