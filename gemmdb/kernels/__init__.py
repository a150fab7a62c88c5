"""Kernels: what each backend offers, the configs that can be made of it, and which of them may run where."""
