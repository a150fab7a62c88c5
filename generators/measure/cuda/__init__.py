"""NVIDIA GPUs: candidates, parallel compilation, and timing in CUDA graphs."""
