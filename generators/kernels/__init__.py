"""Compiles CUTLASS kernels in advance, and writes the archive that ships beside the tables. Needs nvcc and no GPU."""
