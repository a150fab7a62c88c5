"""For the process that tests fork from, imported last: each copy knows the vector units that can be used, and tries
none of them. No collection of a copy looks at what was imported."""

import gc

from torch._inductor import cpu_vec_isa

cpu_vec_isa.valid_vec_isa_list()
gc.freeze()
gc.enable()
