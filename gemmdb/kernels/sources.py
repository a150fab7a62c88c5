"""Which kernel sources rows were measured with, and whether those are still the present ones: ours, and the templates
that come with torch."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from gemmdb.kernels import cutlass, triton
from gemmdb.kernels.config import Config

INDUCTOR = {
    "inductor_mm": "triton_mm",
    "inductor_persistent_tma": "triton_persistent_tma_mm",
    "inductor_bmm": "triton_bmm",
    "inductor_scaled_tma": "triton_epilogue_scaled_mm",
}
"""The file of Inductor's template behind each kernel that is not ours."""
EQUIVALENT = {
    "d4b90a54b960e7b3": "d99842e466803e2d",
    "546c26ab76103966": "0ddad0df156c4100",
    "3027d8e7e1fd500c": "4acd70184f4e6d7d",
    "2574d3865e8de472": "21aeac63b1bdf2a4",
}
"""Digests of torch 2.11's templates and of those in 2.12 to 2.15 that the same kernels come from: these cast indices to
the type of an index, which is the one that they have while offsets fit 32 bits, and larger operands are not legal. The
template of batches is another one in 2.11, in 2.12 and from 2.13 on; that of 2.15 has a variable renamed."""


def digest(config: Config) -> str:
    """16 hexadecimal digits of the source that `config` is rendered from, empty for kernels without a template, and
    for those of torch where it is not installed."""
    if config.backend == "cutlass":
        return cutlass.digest(config.kernel)
    if config.backend != "triton":
        return ""
    return inductor_digest(config.kernel) if config.kernel in INDUCTOR else triton.digest(config.kernel)


def is_current(config: Config, source: str) -> bool:
    """Whether a row whose toolchain says `source` was measured with the kernel as it is rendered now. Rows that name no
    source, and kernels without a template, always were."""
    if config.backend == "cutlass":
        return cutlass.is_current(config.kernel, source)
    if config.backend != "triton" or not source:
        return True
    if config.kernel in INDUCTOR:
        return EQUIVALENT.get(source, source) == EQUIVALENT.get(digest(config), digest(config))
    return triton.is_current(config.kernel, source)


@functools.cache
def inductor_digest(kernel: str) -> str:
    """The digest of the installed torch's template behind `kernel`, one of INDUCTOR; empty without it. Reads the
    package's file: torch itself is not imported."""
    # Imported where it is used: it takes longer than all of gemmdb's own modules.
    from importlib import metadata

    name = f"torch/_inductor/kernel/templates/{INDUCTOR[kernel]}.py.jinja"
    try:
        path = metadata.distribution("torch").locate_file(name)
        return hashlib.sha256(Path(str(path)).read_bytes()).hexdigest()[:16]
    except (OSError, metadata.PackageNotFoundError):
        return ""
