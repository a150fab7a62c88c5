"""Hypothesis strategies for the values of the key: any legal value of each type."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from gemmdb.kernels.config import Config
from gemmdb.kernels.kernel import IntRange, Kernel
from gemmdb.kernels.registry import KERNELS
from gemmdb.key.device import KINDS, Device
from gemmdb.key.epilogue import ARITHMETIC, READS, STORED, Epilogue
from gemmdb.key.epilogue import ORDERS as STORE_ORDERS
from gemmdb.key.int4 import (
    BYTE,
    FP4,
    IN_WORDS,
    INT4,
    LOW_FIRST,
    MX_SIZE,
    MXFP4,
    PLAIN,
    TILED,
    WEIGHT,
    WEIGHTS,
    WORDS,
    Int4Format,
)  # fmt: skip
from gemmdb.key.int4 import SIZES as GROUP_SIZES
from gemmdb.key.layout import ITEM_SIZES, ORDERS, Layout
from gemmdb.key.operands import BIAS_KINDS, Bias, Numerics, Operand
from gemmdb.key.ops import FLOATS, FP8, GROUPED_FP8, OPS, OUTPUTS, RAGGED, SCALES, WEIGHT_DTYPES
from gemmdb.key.problem import L2_STATES, Problem
from gemmdb.key.rules import FUSIONS, SCALAR_CLASSES
from gemmdb.key.toolchain import Toolchain
from gemmdb.table.measurement import Measurement, Protocol, Status, Times

SIZES = st.one_of(st.integers(0, 70), st.sampled_from([4096, 14336, 2**31 - 1]))
ALIGNS = st.sampled_from([1, 2, 4, 8, 16])
NAMES = st.text(max_size=40)
PRINTABLE = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), min_size=1, max_size=60)
MICROSECONDS = st.floats(1e-3, 1e9)


@st.composite
def _fusion(draw: st.DrawFn, words: Sequence[str], out: str) -> str:
    """A word of a list, or the text of an epilogue behind a GEMM of dtype `out`."""
    classes = epilogues.filter(lambda one: not one.stored or ITEM_SIZES[one.stored] != ITEM_SIZES[out])
    return draw(st.sampled_from(words) | classes.map(lambda one: one.text))


@st.composite
def _problem(draw: st.DrawFn) -> Problem:
    op = draw(st.sampled_from(list(OPS)))
    if op == "scaled_mm":
        return draw(_scaled())
    if op == "grouped_mm":
        return draw(_grouped())
    if op in ("mm", "addmm", "bmm"):
        a = b = draw(st.sampled_from(FLOATS))
    elif op == "int_mm":
        a, b = draw(st.sampled_from(["int8", "uint8"])), "int8"
    else:
        a, b = draw(st.sampled_from(["bf16", "fp16"])), draw(st.sampled_from(WEIGHT_DTYPES))
        if b in (INT4, FP4):
            return draw(_int4())
    batch = draw(st.integers(0, 4) | st.just(2**31 - 1)) if op == "bmm" else 1
    layouts = st.builds(Layout, st.sampled_from(ORDERS), ALIGNS)
    if batch > 1:
        padded = st.sampled_from([order for order in ORDERS if order.endswith("-padded")])
        layouts |= st.builds(Layout, st.sampled_from(ORDERS), ALIGNS, st.just("broadcast"))
        layouts |= st.builds(Layout, padded, ALIGNS, st.just("interleaved"))
    biases = st.builds(Bias, st.sampled_from(BIAS_KINDS), st.sampled_from(sorted(ITEM_SIZES)), ALIGNS)
    bias = draw(biases) if op == "addmm" else None
    if op == "mixed_mm":
        bias = draw(st.none() | biases)
    numerics = Numerics(
        draw(st.sampled_from(["ieee", "tf32", "bf16"])) if a == "fp32" else "ieee",
        draw(st.sampled_from(["fp32", "fp16", "fp64", "int32"])),
        draw(st.booleans()),
        draw(st.booleans()),
    )
    out = draw(st.sampled_from(sorted(ITEM_SIZES)))
    return Problem(
        op,
        *draw(st.tuples(SIZES, SIZES, SIZES)),
        Operand(a, draw(layouts)),
        Operand(b, draw(layouts)),
        out,
        bias,
        draw(st.sampled_from(SCALAR_CLASSES)),
        draw(_fusion([fusion for fusion in FUSIONS if op != "bmm" or fusion != "scale"], out)),
        numerics,
        draw(st.booleans()),
        batch,
    )


@st.composite
def _int4(draw: st.DrawFn) -> Problem:
    """Products with a weight with groups: tiled ones, words, and bytes, whose zero points have more dtypes."""
    kind, weight = draw(st.sampled_from(["tiled", "words", "bytes", "int8", "uint8", FP4])), WEIGHT
    if kind == "words":
        a = draw(st.sampled_from(["bf16", "fp16"]))
        own = Int4Format(draw(st.sampled_from(GROUP_SIZES)), INT4, draw(st.sampled_from(WORDS)))
    elif kind == "tiled":
        a, own = "bf16", Int4Format(draw(st.sampled_from(GROUP_SIZES)), "bf16", draw(st.sampled_from(sorted(TILED))))
    elif kind == FP4:
        a, weight, own = "bf16", WEIGHTS[FP4], Int4Format(MX_SIZE, "none", MXFP4)
    elif kind in WEIGHTS:
        a, weight = draw(st.sampled_from(["bf16", "fp16"])), WEIGHTS[kind]
        zeros = draw(st.sampled_from(["none", a, kind, *([IN_WORDS] if kind == "uint8" else [])]))
        own = Int4Format(draw(st.sampled_from(GROUP_SIZES)), zeros, draw(st.sampled_from([BYTE, "byte-fp32"])))
    else:
        a = draw(st.sampled_from(["bf16", "fp16"]))
        zeros = draw(st.sampled_from(["none", a, "uint8", "int8"]))
        packing = draw(st.sampled_from([LOW_FIRST, "high-first", PLAIN]))
        zeros = draw(st.sampled_from([zeros, INT4])) if packing == LOW_FIRST else zeros
        zeros = a if packing == PLAIN else zeros
        own = Int4Format(draw(st.sampled_from(GROUP_SIZES)), zeros, packing)
    bias = st.builds(Bias, st.sampled_from(BIAS_KINDS), st.sampled_from(sorted(ITEM_SIZES)), ALIGNS)
    return Problem(
        "mixed_mm",
        *draw(st.tuples(SIZES, SIZES, SIZES)),
        Operand(a, draw(st.builds(Layout, st.sampled_from(ORDERS), ALIGNS))),
        weight,
        a,
        draw(st.none() | bias),
        fusion=draw(_fusion(["none", "pointwise"], a)),
        numerics=Numerics(reduced=draw(st.booleans()), deterministic=draw(st.booleans())),
        constant=draw(st.booleans()),
        int4=own,
    )


@st.composite
def _scaled(draw: st.DrawFn) -> Problem:
    """Products of fp8 operands with scales, which leave less open than the other ops do."""
    a, b = (st.builds(Layout, st.sampled_from([order, f"{order}-padded"]), ALIGNS) for order in ("row", "col"))
    bias = st.builds(Bias, st.just("1d"), st.sampled_from(OUTPUTS), ALIGNS)
    out = draw(st.sampled_from(OUTPUTS))
    return Problem(
        "scaled_mm",
        *draw(st.tuples(SIZES, SIZES, SIZES)),
        Operand(draw(st.sampled_from(FP8)), draw(a)),
        Operand(draw(st.sampled_from(FP8)), draw(b)),
        out,
        draw(st.none() | bias),
        fusion=draw(_fusion(["none", "pointwise"], out)),
        numerics=Numerics(deterministic=draw(st.booleans()), fast=draw(st.booleans())),
        constant=draw(st.booleans()),
        scales=draw(st.sampled_from(SCALES)),
    )


@st.composite
def _grouped(draw: st.DrawFn) -> Problem:
    """Products of groups: the output has the dtype of A, and there is neither a bias nor a scale; or of fp8, with
    scales."""
    dtype = draw(st.sampled_from(OPS["grouped_mm"].a))
    scaled, out = dtype in GROUPED_FP8, "bf16" if dtype in GROUPED_FP8 else dtype
    orders = (["row", "row-padded"], ["col", "col-padded"]) if scaled else (ORDERS, ORDERS)
    a, b = (st.builds(Layout, st.sampled_from(one), ALIGNS) for one in orders)
    return Problem(
        "grouped_mm",
        *draw(st.tuples(SIZES, SIZES, SIZES)),
        Operand(dtype, draw(a)),
        Operand(dtype, draw(b)),
        out,
        fusion=draw(_fusion(["none", "pointwise"], out)),
        numerics=Numerics(
            reduced=draw(st.booleans()), deterministic=draw(st.booleans()), fast=scaled and draw(st.booleans())
        ),
        constant=draw(st.booleans()),
        scales="row" if scaled else "",
        groups=draw(st.integers(0, 9) | st.sampled_from([128, 2**31 - 1])),
        ragged="m" if scaled else draw(st.sampled_from(RAGGED)),
    )


@st.composite
def _config(draw: st.DrawFn) -> Config:
    kernel: Kernel = draw(st.sampled_from(list(KERNELS.values())))
    values = {}
    optional = {name: domain for name, domain in kernel.optional.items() if draw(st.booleans())}
    for name, domain in {**kernel.params, **optional}.items():
        if isinstance(domain, IntRange):
            choice = st.integers(domain.low, domain.high)
            if domain.power_of_two:
                exponents = range(domain.high.bit_length())
                choice = st.sampled_from([2**e for e in exponents if 2**e in domain])
        else:
            choice = st.sampled_from(domain.values)
        values[name] = draw(choice)
    return Config.of(kernel.backend, kernel.name, **values)


@st.composite
def _measurement(draw: st.DrawFn) -> Measurement:
    status = draw(st.sampled_from(Status))
    low, mid, high = sorted(draw(MICROSECONDS) for _ in range(3))
    times = Times(mid, low, high, draw(st.integers(1, 1000)), draw(MICROSECONDS))
    return Measurement(
        draw(problems),
        draw(configs),
        draw(devices),
        draw(protocols),
        draw(toolchains),
        draw(st.from_regex(r"[A-Za-z0-9_.:\-]{1,64}", fullmatch=True)),
        status,
        times if status in (Status.OK, Status.SLOW) else None,
        draw(st.none() | st.floats(0, 10)),
        draw(st.none() | st.floats(0, 1000)),
        draw(st.just("") | PRINTABLE),
    )


epilogues: st.SearchStrategy[Epilogue] = st.builds(
    Epilogue,
    st.sampled_from(ARITHMETIC),
    st.sampled_from(READS),
    st.booleans(),
    st.sampled_from(STORE_ORDERS),
    st.sampled_from(["", *STORED.values()]),
)
int4_problems: st.SearchStrategy[Problem] = _int4()
problems: st.SearchStrategy[Problem] = _problem()
configs: st.SearchStrategy[Config] = _config()
devices: st.SearchStrategy[Device] = st.builds(
    Device,
    st.sampled_from(KINDS),
    st.from_regex(r"[a-z][a-z0-9_]{1,15}", fullmatch=True),
    PRINTABLE,
    st.integers(1, 10_000),
    st.integers(0, 1000),
    st.booleans(),
    st.sampled_from(["-", "avx512_bf16", "neon"]),
)
protocols: st.SearchStrategy[Protocol] = st.builds(
    Protocol,
    st.sampled_from(["graph", "host", "model"]),
    st.sampled_from(L2_STATES),
    st.integers(1, 10_000),
    st.integers(1, 1_000_000),
    st.sampled_from(["aten:default"]),
    st.integers(1, 1000),
)
toolchains: st.SearchStrategy[Toolchain] = st.builds(Toolchain, *(NAMES for _ in range(7)))
measurements: st.SearchStrategy[Measurement] = _measurement()
