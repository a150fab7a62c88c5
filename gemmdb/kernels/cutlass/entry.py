"""The function of a compiled CUTLASS kernel that Inductor's code calls.

Its name is a digest of all that is compiled, and its parameters follow from which operands there are. So a kernel that
somebody compiled before is the one that a compile asks for, if it has the name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

OPERANDS = ("a", "b", "scale", "row_scale", "bias", "zeros")
"""What a kernel reads, in the order of its parameters; those that a GEMM does not have are left out. The zero points of
an int4 weight take the place of the rows' scale in `Product`."""
OUT = "out"
INTEGERS = ("m", "n", "k", "lda", "ldb", "split", "swizzle", "raster", "bytes")
"""`split`, `swizzle`, `raster`: the numbers of an order; for `scaled_blocks`, the steps between its scales. `bytes`: of
the workspace."""
_PREFIX = "gemmdb_cutlass_"
_NAME = "GEMMDB_NAME"
_TEXT = """
static char* place(void const* buffer, int bytes) {
  return static_cast<char*>(const_cast<void*>(buffer)) + bytes;
}
extern "C" __attribute__((__visibility__("default"))) SIGNATURE {
  Product product{POINTERS, m, n, k, lda, ldb, LAST};
  Order order{split, swizzle, raster};
  if (workspace_size) {
    *workspace_size = workspace_bytes(product, order);
    return 0;
  }
  return run(product, order, {workspace, static_cast<size_t>(bytes)}, stream);
}
"""


@dataclass(frozen=True)
class Unit:
    """What nvcc compiles: a CUDA source with one function. `signature`: that of the function in C."""

    name: str
    signature: str
    source: str


def unit(kernel: str, buffers: Mapping[str, str]) -> Unit:
    """A rendered kernel with its function. `buffers`: by operand, and for OUT, the parameter with its memory; operands
    that lie in one buffer share one. An operand begins some bytes behind its buffer: `a_offset`, and so on."""
    operands = [name for name in OPERANDS if name in buffers]
    pointers = [f"void const* {buffer}" for buffer in dict.fromkeys(buffers[name] for name in operands)]
    integers = [f"const int {name}" for name in (*INTEGERS, *(f"{name}_offset" for name in (*operands, OUT)))]
    rest = ("size_t* workspace_size", "uint8_t* workspace", "cudaStream_t stream")
    signature = f"int {_NAME}({', '.join((*pointers, f'void* {buffers[OUT]}', *integers, *rest))})"
    places = {name: f"place({buffers[name]}, {name}_offset)" if name in buffers else "nullptr" for name in OPERANDS}
    places[OUT] = f"place({buffers[OUT]}, {OUT}_offset)"
    text = _TEXT.replace("POINTERS", ", ".join(places[name] for name in ("a", "b", "scale", "bias", OUT)))
    last = places["zeros" if "zeros" in buffers else "row_scale"]
    text = kernel + text.replace("LAST", last).replace("SIGNATURE", signature)
    name = _PREFIX + hashlib.sha256(text.encode()).hexdigest()[:24]
    return Unit(name, signature.replace(_NAME, name), text.replace(_NAME, name))


def apart(kernel: str, operands: Iterable[str]) -> Unit:
    """The unit of a kernel whose operands lie in buffers of their own: what is compiled in advance."""
    return unit(kernel, {name: name for name in (*operands, OUT)})
