"""For the process that tests fork from, imported last: what each copy would find out or make at its first compile. It
knows the vector units that can be used and tries none of them, has Inductor's patterns and its hash of torch's sources,
and gemmdb, not enabled. No collection of a copy looks at what was imported."""

import gc

import torch
from torch._inductor import codecache, cpu_vec_isa
from torch._inductor.fx_passes import joint_graph

import gemmdb.inductor.entry.install  # noqa: F401

cpu_vec_isa.valid_vec_isa_list()
codecache.torch_key()
joint_graph.lazy_init(torch.device("cpu"))
gc.freeze()
gc.enable()
