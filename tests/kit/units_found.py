"""For the process that tests fork from: each copy knows the vector units that can be used, and tries none of them."""

from torch._inductor import cpu_vec_isa

cpu_vec_isa.valid_vec_isa_list()
