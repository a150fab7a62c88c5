"""Epilogue: the elementwise work that Inductor fuses into a GEMM's kernel, described by what decides its cost."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from gemmdb.errors import InputError
from gemmdb.key.layout import ITEM_SIZES

ARITHMETIC = ("light", "math", "random")
READS = (0, 1, 2)
ORDERS = ("own", "permuted", "transposed")
STORED = {8: "fp64", 4: "fp32", 2: "bf16", 1: "int8"}
"""The dtype that stands for all dtypes of so many bytes per element."""
GRAMMAR = "pointwise" + "".join(
    f"[{'|'.join(f':{word}' for word in words)}]"
    for words in (ARITHMETIC[1:], ("reads1", "reads2"), ("kept",), ORDERS[1:], STORED.values())
)
"""What a class may be, for messages and help."""
EXAMPLES = {
    "relu": "pointwise", "clamp": "pointwise", "gelu": "pointwise:math", "silu": "pointwise:math",
    "swish": "pointwise:math", "sigmoid": "pointwise:math", "tanh": "pointwise:math", "softplus": "pointwise:math",
    "swiglu": "pointwise:math:reads1", "geglu": "pointwise:math:reads1", "residual": "pointwise:reads1",
    "add": "pointwise:reads1", "dropout": "pointwise:random",
}  # fmt: skip
"""Common names of epilogues, and the class of each as it follows a GEMM by itself."""
_TEXT = re.compile(
    rf"pointwise(?::(?P<arithmetic>{'|'.join(ARITHMETIC[1:])}))?(?::reads(?P<reads>[12]))?(?P<kept>:kept)?"
    rf"(?::(?P<order>{'|'.join(ORDERS[1:])}))?(?::(?P<stored>{'|'.join(STORED.values())}))?"
)


@dataclass(frozen=True, slots=True)
class Epilogue:
    """A class of epilogues of an [M, N] output.

    `arithmetic`: `light` (sums, products, comparisons, a vector over N, a cast), `math` (exponentials, the error
    function, tanh and their kind, as in GELU and SiLU) or `random` (random numbers, as in dropout). `reads`: how many
    full-size tensors it reads, such as a residual or a gate; 2 stands for more, too. `kept`: the GEMM's own output is
    stored as well, because something else reads it. `order`: how the result lies in memory: in the GEMM's `own`
    order, `permuted` with pieces of rows kept whole (as the heads of an attention), or `transposed`. `stored`: the
    dtype of the result, one of STORED, if its size differs from that of the key's `out`; empty otherwise.

    Raises InputError for values outside these.
    """

    arithmetic: str = "light"
    reads: int = 0
    kept: bool = False
    order: str = "own"
    stored: str = ""

    def __post_init__(self) -> None:
        known = self.arithmetic in ARITHMETIC and self.order in ORDERS and self.stored in ("", *STORED.values())
        if not known or type(self.reads) is not int or self.reads not in READS or type(self.kept) is not bool:
            raise InputError(f"no such epilogue: {self!r}")

    @property
    def text(self) -> str:
        """The canonical form, `pointwise:math:reads1`: what differs from the light class `pointwise`, in a fixed
        order."""
        parts = (
            self.arithmetic if self.arithmetic != "light" else "",
            f"reads{self.reads}" if self.reads else "",
            "kept" if self.kept else "",
            self.order if self.order != "own" else "",
            self.stored,
        )
        return ":".join(["pointwise", *filter(None, parts)])


LIGHT = Epilogue()
"""Cheap arithmetic without further tensors, stored as the GEMM's output would be: `pointwise`. Relu stands for it."""


@functools.lru_cache(maxsize=1024)
def parse(text: str) -> Epilogue:
    """The Epilogue of a canonical form; raises InputError unless `text` is exactly what `Epilogue.text` writes."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise InputError(unknown(text))
    part = match.groupdict()
    return Epilogue(
        part["arithmetic"] or "light", int(part["reads"] or 0), bool(part["kept"]), part["order"] or "own",
        part["stored"] or "",
    )  # fmt: skip


def unknown(text: str) -> str:
    """The message for a text that is no fusion context. It names the class if the text is a common epilogue."""
    name = text.strip().lower()
    meant = f" {name} belongs to the class {EXAMPLES[name]};" if name in EXAMPLES else ""
    return f"no such fusion: {text[:80]!r};{meant} known: none, scale, {GRAMMAR}"


def stored_as(size: int, out: str) -> str:
    """The `stored` of a result with `size` bytes per element behind a GEMM of dtype `out`: empty if the sizes are
    equal. Sizes that no dtype of the key has count as the next smaller one."""
    if size == ITEM_SIZES[out]:
        return ""
    return next(name for least, name in STORED.items() if size >= least)
