"""CPU backend of the generator: ATen and Inductor's C++ GEMM template, timed on the host clock."""
