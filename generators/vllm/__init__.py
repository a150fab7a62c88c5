"""Tuning of vLLM's own Triton kernels, where vLLM is installed: its JSON files of configs by M, from measured times."""
