"""NVIDIA GPUs: the candidates, compiling them in parallel, and timing them in CUDA graphs."""
