"""Rendering: valid Python, one unit for every size of a divisibility class, and the launches that go with it."""

import ast
import re
from dataclasses import replace
from itertools import product

import pytest
import torch
from kit import gpu

from gemmdb.generators.measure import program
from gemmdb.generators.measure.cuda import elementwise
from gemmdb.generators.measure.cuda.render import Launch, plan
from gemmdb.key.epilogue import ORDERS, READS, Epilogue
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Operand
from gemmdb.key.problem import Problem

gemm = Problem.gemm
SPLIT = {"split_k": 4, "reduce": "kernel"}
FIXUP = {"split_k": 4, "reduce": "fixup"}


def check(launch: Launch) -> str:
    """The source, after making sure that the kernel takes exactly the unit's arguments."""
    function = ast.parse(launch.unit.source).body[-1]
    assert isinstance(function, ast.FunctionDef)
    assert [argument.arg for argument in function.args.args] == [name for name, _ in launch.unit.args]
    assert set(dict(launch.unit.divisors)) <= {name for name, _ in launch.unit.args}
    return launch.unit.source


@pytest.mark.parametrize("changes", [{}, {"swap": 1}, {"load": "tma"}, {"load": "tma", "flatten": 1}])
def test_only_groups_of_fp8_have_scales(changes):
    """Rows of bf16 hold while what they were measured with is rendered: without a word of scales."""
    sizes = {"m": 32, "n": 512, "k": 272, "groups": 4}
    config = gpu.make("grouped", block_k=32, **changes)
    scaled, plain = (
        check(plan(gemm("grouped_mm", **sizes, dtype=dtype), config).launches[0]) for dtype in ("fp8_e4m3", "bf16")
    )
    assert "scale" not in plain.lower()
    assert (scaled.count("tl.load(scale_a"), scaled.count("tl.load(scales")) == (1, 1)


@pytest.mark.parametrize("op", ["mm", "int_mm", "mixed_mm"])
@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
def test_a_persistent_kernel_has_at_most_one_program_per_tile_and_place(make, layout, op):
    problem = gemm(op, m=256, n=512, k=256, layout=layout)
    for swap in (0, 1):
        (launch,) = plan(problem, make.persistent(swap=swap, resident=2)).launches
        assert (launch.grid, launch.resident) == ((4, 1, 1), 2)
        source = check(launch)
        assert "flatten=True" in source
        assert source.count("make_tensor_descriptor") == 2
    assert plan(problem, make.persistent()).tma


@pytest.mark.parametrize("dequant", ["cast", "bits"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("weight", ["int8", "uint8"])
def test_the_weight_is_dequantised_in_the_kernel(make, weight, dtype, dequant):
    problem = gemm("mixed_mm", m=8, n=512, k=256, dtype=dtype, weight_dtype=weight, fusion="scale")
    for config in (make.tile(dequant=dequant), make.gemv(dequant=dequant)):
        (launch,) = plan(problem, config).launches
        source = check(launch)
        assert ("inline_asm_elementwise" in source) == (dequant == "bits")
        assert ("0x80808080" in source) == (dequant == "bits" and weight == "int8")
        assert ("scale", f"*{dtype}") in launch.unit.args


@pytest.mark.parametrize(("weight", "pointer"), [("fp8_e4m3", "*fp8e4nv"), ("fp8_e5m2", "*fp8e5")])
@pytest.mark.parametrize(("scales", "places"), [("tensor", ("", "")), ("row", (" + idx_m", " + idx_n"))])
def test_fp8_operands_are_scaled_in_the_epilogue(make, scales, places, weight, pointer):
    problem = gemm("scaled_mm", m=8, n=512, k=208, weight_dtype=weight, scales=scales, bias="1d", out_dtype="fp16")
    for config in (make.gemv(), make.narrow(), make.narrow(split_k=2), make.narrow(swap=1)):
        (launch,) = plan(problem, config).launches
        source = check(launch)
        types = dict(launch.unit.args)
        assert (types["A"], types["B"], types["out"]) == ("*fp8e4nv", pointer, "*fp16")
        assert types["scale_a"] == types["scale_b"] == "*fp32"
        scaled = [f"tl.load(scale_{name}{place}" for name, place in zip("ab", places, strict=True)]
        last = [source.index(one) for one in (*scaled, "tl.load(bias", "tl.store(out")]
        assert last == sorted(last)
        assert "other=0.0" in source  # Triton casts no integer to fp8.
        assert source.count("scale_a") == 2
    assert "scale_a" not in check(plan(gemm("int_mm", m=32, n=512, k=208), make.narrow()).launches[0])


@pytest.mark.parametrize("config", ["tile", "gemv", "narrow"])
def test_one_unit_serves_all_sizes_of_a_divisibility_class(make, config):
    """K = 1480 is a multiple of 8. A kernel that does not know loads single elements and takes ten times as long."""

    def unit(m, n, k):
        return plan(gemm("mm", m=m, n=n, k=k), getattr(make, config)()).launches[0].unit

    units = {unit(*sizes) for sizes in ((7, 4096, 4096), (5, 14336, 8192), (8, 512, 256))}
    assert len(units) == 1
    odd = unit(7, 4096, 4100)
    assert odd not in units
    assert "EVEN_K: tl.constexpr = False" in odd.source
    assert dict(unit(7, 1004, 1480).divisors) == {"A": 16, "B": 16, "out": 16, "arg_N": 4, "arg_K": 8}


def test_a_transposed_activation_makes_the_rows_count_for_alignment(make):
    units = [plan(gemm("mm", m=m, n=512, k=512, layout="tn"), make.tile()).launches[0].unit for m in (32, 33)]
    assert [dict(unit.divisors).get("arg_M") for unit in units] == [16, None]


def test_the_partial_sums_are_reduced_by_a_second_kernel_or_by_the_last_program(make):
    problem = gemm("addmm", m=20, n=1000, k=4096, fusion="pointwise")
    second = plan(problem, make.tile(**SPLIT))
    assert [launch.grid for launch in second.launches] == [(2 * 16, 4, 1), (-(-20 * 1000 // 512), 1, 1)]
    assert (second.partials, second.counters) == (4 * 20 * 1000, 0)
    assert "maximum" not in check(second.launches[0])
    assert "maximum" in check(second.launches[1])
    last = plan(problem, make.tile(**FIXUP))
    assert (last.partials, last.counters) == (32 * 16 * 64 * 4, 32)
    assert "atomic_add" in check(last.launches[0])
    assert "maximum" in last.launches[0].unit.source


@pytest.mark.parametrize("swap", [0, 1])
@pytest.mark.parametrize("split", [1, 4])
def test_a_narrow_kernel_reads_the_scale_once_before_the_loop(make, split, swap):
    problem = gemm("mixed_mm", m=20, n=1000, k=4096, fusion="scale", bias="1d")
    made = plan(problem, make.narrow(split_k=split, swap=swap))
    (launch,) = made.launches
    source = check(launch)
    assert launch.grid == (2 * 16, split, 1)
    assert (made.partials, made.counters) == ((32 * 16 * 64 * 4, 32) if split > 1 else (0, 0))
    assert source.count("scale + ") == 1
    assert source.index("scale + ") < source.index("for step") < source.index("* factor") < source.index("bias + ")


@pytest.mark.parametrize(("scalars", "added"), [("unit", "(tl.float32)"), ("general", "* 0.4"), ("beta0", None)])
def test_alpha_and_beta_are_in_the_epilogue(make, scalars, added):
    problem = replace(gemm("addmm", m=20, n=1000, k=4096), scalars=scalars)
    for config in (make.tile(), make.tile(**SPLIT), make.gemv(), make.narrow(), make.persistent()):
        launch = plan(problem, config).launches[-1]
        source = check(launch)
        assert ("result * 2.0" in source) == (scalars == "general")
        assert ("bias" in source) == ("bias" in dict(launch.unit.args)) == (added is not None)
        assert added is None or f"{added}\n" in source


def test_the_epilogue_of_an_integer_gemm_scales_in_fp32_behind_the_loop(make):
    for config in (make.tile(), make.narrow()):
        source = check(plan(gemm("int_mm", m=32, n=512, k=256, fusion="scale"), config).launches[0])
        assert "out_dtype=tl.int32" in source
        assert source.index("for ") < source.index("acc.to(tl.float32)") < source.index("tl.load(scale")


def test_the_kernels_around_aten_render():
    mixed, integer = gemm("mixed_mm", m=8, n=512, k=256, fusion="scale"), gemm("int_mm", m=32, n=512, k=256)
    for launch in (elementwise.cast(mixed), elementwise.after(mixed, "bf16"), elementwise.after(integer, "int32")):
        check(launch)
    scaled = replace(gemm("addmm", m=8, n=512, k=256, fusion="pointwise"), scalars="general")
    source = check(elementwise.after(scaled, "bf16"))
    assert "maximum" in source
    assert "result *" not in source
    assert "bias" not in source
    for block, steps, warps in ((4096, 8, 8), (512, 8, 1)):
        launch = elementwise.read(2**20 + 1, block, steps, warps)
        check(launch)
        assert (launch.grid[0] - 1) * block * steps < 2**20 + 1 <= launch.grid[0] * block * steps


INTERLEAVED = Operand("bf16", Layout("row-padded", 8, "interleaved"))
BMM = {"op": "bmm", "batch": 8, "m": 64, "n": 64, "k": 128}
FP8 = {"op": "scaled_mm", "m": 512, "n": 4096, "k": 4096}


@pytest.mark.parametrize(("bare", "followed", "plain"), [
    (gemm(**BMM), replace(gemm(**BMM, fusion="pointwise"), a=INTERLEAVED), gemm("mm", m=8 * 64, n=64, k=128)),
    *(
        (gemm(**FP8, **rest), gemm(**FP8, **rest, fusion="pointwise", out_dtype="fp16"),
         gemm(**{**FP8, "op": "mm"}, dtype="fp16"))
        for rest in ({}, {"scales": "row", "fast_accum": True, "bias": "1d"})
    ),
], ids=["bmm", "scaled_mm", "scaled_mm of rows"])  # fmt: skip
def test_what_follows_is_that_of_one_gemm_in_the_outputs_dtype(bare, followed, plain):
    assert elementwise.around(bare) == (None, None)
    before, after = elementwise.around(followed)
    assert before is None
    assert after == elementwise.after(replace(plain, fusion="pointwise"), plain.out)


def int4(**rest):
    return gemm("mixed_mm", **{"m": 16, "n": 4096, "k": 4096, "weight_dtype": "int4", **rest})


@pytest.mark.parametrize(("flags", "tensors"), [
    ({}, [("B", "*i32"), ("scale", "*bf16")]),
    ({"packing": "low-first"}, [("B", "*u8"), ("scale", "*bf16")]),
    ({"packing": "low-first", "zeros": "uint8", "dtype": "fp16"}, [("B", "*u8"), ("scale", "*fp16"), ("zeros", "*u8")]),
])  # fmt: skip
def test_what_a_kernel_of_int4_takes(flags, tensors):
    for config in (gpu.make("int4"), gpu.make("int4", scaled="sums", split_k=2)):
        made = plan(int4(**flags), config)
        (launch,) = made.launches
        check(launch)
        assert list(launch.unit.args)[1 : 1 + len(tensors)] == tensors
        assert launch.grid == (64, config.values["split_k"], 1)
        assert (made.partials > 0, made.counters) == (config.values["split_k"] > 1, 64 * (config.values["split_k"] > 1))


def test_programs_of_int4_for_a_few_rows_take_all_of_k():
    made = plan(int4(m=3, n=1032), gpu.make("int4_skinny", block_n=32))
    assert [launch.grid for launch in made.launches] == [(33, 1, 1)]
    assert (made.partials, made.counters) == (0, 0)


def test_what_aten_runs_around_its_gemm_of_int4():
    """The operator of a tiled weight dequantises by itself and adds nothing."""
    assert elementwise.around(int4()) == (None, None)
    first, last = elementwise.around(int4(bias="1d"))
    assert first is None
    assert "bias" in dict(last.unit.args)
    first, last = elementwise.around(int4(packing="low-first", zeros="bf16"))
    assert [name for name, _ in first.unit.args] == ["B", "scale", "zeros", "cast", "elements"]
    assert last is None


CLASSES = [Epilogue(*fields) for fields in product(("light", "math"), READS, (False, True), ORDERS, ("", "fp32"))]


@pytest.mark.parametrize("own", CLASSES, ids=lambda own: own.text)
def test_a_class_of_epilogues_is_in_the_kernel_and_in_the_one_after_aten(make, own):
    problem = gemm("mm", m=32, n=512, k=256, fusion=own.text)
    for config in (make.tile(), make.tile(**SPLIT), make.tile(**FIXUP), make.narrow(swap=1), make.persistent()):
        launch = plan(problem, config).launches[-1]
        source, types = check(launch), dict(launch.unit.args)
        assert types["out"] == ("*fp32" if own.stored else "*bf16")
        assert source.count("tl.load(read") == own.reads
        assert ("kept" in types) == own.kept
        assert ("tl.erf" in source) == (own.arithmetic == "math" and not own.reads)
        assert ("tl.exp" in source) == (own.arithmetic == "math" and own.reads > 0)
        assert ("maximum" in source) == (own.arithmetic == "light" and not own.reads)
    after = check(elementwise.after(problem, "bf16"))
    assert after.count("tl.load(read") == own.reads
    assert "kept" not in after  # ATen has stored the product.


class Index(int):
    """An index of Triton: a number that knows its dtype."""

    def to(self, dtype):
        return self


def places(statements, sizes, rows):
    """Where each element of an [M, N] result is stored, by the last of the statements."""
    inside = statements[-1].split("tl.store(out + ")[1].split(", ")[0].replace("tl.int64", "None")
    inside = re.sub(r"(\([^()]*\))\.to\(None\)", r"\1", inside)
    names = dict(sizes)
    return [
        eval(inside, {}, names | {"idx_m": Index(m), "idx_n": Index(n)}) for m in range(rows) for n in range(sizes["N"])
    ]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("op", ["mm", "bmm"])
def test_results_are_stored_where_the_program_stores_them(op, order):
    batch = {"batch": 3} if op == "bmm" else {}
    fusion = Epilogue(order=order).text
    problem = gemm(op, m=6, n=32, k=8, fusion=fusion, **batch)
    rows = 6 * batch.get("batch", 1)
    source = elementwise.after(problem, "bf16").unit.source
    found = places(source.strip().splitlines(), {"M": rows, "N": 32}, rows)
    # The program's result, holding the number of each element of its memory.
    stored = program.output(problem, torch.device("cpu"))
    numbers = torch.arange(stored.numel()).view(stored.shape)
    assert found == program.as_product(problem, numbers).reshape(-1).tolist()
