"""QuACK: bf16, and groups whose rows follow each other. Imports torch.

Its kernels are written in CuTe DSL. At the first call with some sizes, its own autotuner times all configs, which its
own processes compile, with cold weights in a CUDA graph. It keeps the compiled kernels, which fit all sizes, and the
times in the folder QUACK_CACHE_DIR. Nothing may run beside the tuning, so that `measure --warm` leaves it out.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import torch

from benchmarks.peers.case import Case, Made, each
from gemmdb.generators.measure.operands import Operands


def library() -> Any:
    """The module. Raises ImportError without QuACK."""
    return importlib.import_module("quack.gemm_interface")


def dense(case: Case) -> Made:
    """A GEMM with the config that its autotuner finds: each block sums along all of K, which is its default."""
    case.multiple(n=8, k=8)
    return each([partial(library().gemm, made.a, made.b) for made in case.sets])


def split_k(case: Case) -> Made:
    """A GEMM whose autotuner also chooses how many blocks share a sum along K, where the output has few tiles."""
    case.multiple(n=8, k=8)
    return each([partial(library().gemm, made.a, made.b, split_k=None) for made in case.sets])


def grouped(case: Case) -> Made:
    """The GEMMs of experts in one kernel, which reads on the GPU where the rows of each begin."""
    case.multiple(n=8, k=8)
    return each([_grouped(made) for made in case.sets])


def _grouped(made: Operands) -> partial[torch.Tensor]:
    assert made.offsets is not None
    starts = torch.cat([made.offsets.new_zeros(1), made.offsets])
    return partial(library().gemm, made.a, made.b, cu_seqlens_m=starts)
