"""Builds over a Ray cluster: Ray places the processes, transports their data and detects lost ones. What is measured,
and in what order, is decided as in a single-host build."""
