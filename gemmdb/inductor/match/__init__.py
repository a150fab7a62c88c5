"""Finding products: which nodes of a graph are GEMMs, and the Problem of each."""
