"""Builds over a Ray cluster: Ray places the processes, carries what they send and says which are lost. What is
measured, and in what order, is decided as in a build on one host."""
