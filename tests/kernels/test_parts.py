"""Which configs take several weights of one activation, and that their templates give each its columns."""

import ast

import jinja2
import pytest
from kit.gpu import make

from gemmdb.kernels import triton
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.triton import parts
from gemmdb.key.problem import Problem

TILE = make("tile", block_n=32)
NARROW = make("narrow", block_n=32, split_k=4)
GEMV = make("gemv", block_n=32, unroll=2, stages=5)
PERSISTENT = make("persistent", block_n=32, resident=2)
WIDTHS = (64, 32, 96)


@pytest.mark.parametrize("config", [TILE, NARROW, GEMV], ids=lambda config: config.kernel)
def test_every_block_of_columns_lies_in_one_weight(config):
    assert parts.rejection(config, WIDTHS) is None
    assert "two weights" in str(parts.rejection(config, (64, 48)))


@pytest.mark.parametrize(
    "config",
    [
        ATEN,
        PERSISTENT,
        Config.of("triton", "tile", **{**TILE.values, "load": "tma"}),
        Config.of("triton", "tile", **{**TILE.values, "split_k": 2, "reduce": "kernel"}),
    ],
    ids=["aten", "persistent", "tensor maps", "a second kernel"],
)
def test_other_configs_take_one_weight(config):
    assert parts.rejection(config, WIDTHS)


def rendered(config: Config, problem: Problem, scaled: bool, biased: bool, scales: str = "") -> ast.FunctionDef:
    sizes = {f"B{place}" if place else "B": width for place, width in enumerate(WIDTHS)}
    hooks = {
        "def_kernel": lambda *names: f"def kernel({', '.join(names)}):",
        "size": lambda name, dim: str(sizes[name] if name in sizes and dim else (problem.m, problem.k)[dim]),
        "stride": lambda name, dim: f"stride{dim}",
        "store_output": lambda indices, value, mask, indent_width=4, val_shape=None: f"store({', '.join(indices)})",
    }
    names = triton.names(config, problem) | parts.constants(len(WIDTHS), scaled, biased, scales)
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    text = environment.from_string(triton.source(config.kernel)).render(**names, **hooks)
    (function,) = ast.parse(text.strip()).body
    assert isinstance(function, ast.FunctionDef)
    assert text.count("store(idx_out)") == 1
    return function


@pytest.mark.parametrize("config", [TILE, NARROW, GEMV], ids=lambda config: config.kernel)
@pytest.mark.parametrize(("scaled", "biased"), [(False, False), (True, False), (False, True)])
def test_the_templates_take_the_weights_and_a_vector_for_each(config, scaled, biased):
    problem = Problem.gemm("mm", m=4, n=sum(WIDTHS), k=512)
    function = rendered(config, problem, scaled, biased)
    weights, vector = ["B", "B1", "B2"], "scale" if scaled else "bias"
    vectors = [vector, f"{vector}1", f"{vector}2"] if scaled or biased else []
    assert [argument.arg for argument in function.args.args] == ["A", *weights, *vectors]
    source = ast.unparse(function)
    assert "beyond = start >= 64\n" in source
    assert "beyond = start >= 64 + 32\n" in source
    # Nothing of the kernel may change where K begins or how tiles are ordered.
    assert source.count("base_n = 0\n") == 1


@pytest.mark.parametrize("config", [TILE, NARROW, GEMV], ids=lambda config: config.kernel)
def test_the_rows_of_an_fp8_activation_are_scaled_before_the_columns(config):
    problem = Problem.gemm("scaled_mm", m=4, n=sum(WIDTHS), k=512, scales="row")
    function = rendered(config, problem, True, True, "row")
    assert [argument.arg for argument in function.args.args][-1] == "a_scale"
    source = ast.unparse(function)
    places = [source.index(f"tl.load({name} + ") for name in ("a_scale", "this_scale", "this_bias")]
    assert places == sorted(places)


@pytest.mark.parametrize("config", [make("int4", block_n=32), make("int4_skinny", block_n=32)], ids=["int4", "skinny"])
@pytest.mark.parametrize("packing", ["tinygemm8", "low-first"])
def test_an_int4_weight_comes_with_its_tensors(config, packing):
    assert parts.rejection(config, WIDTHS) is None
    assert parts.rejection(config, (64, 48))
    kind = {"packing": packing} if packing == "tinygemm8" else {"packing": packing, "zeros": "uint8"}
    problem = Problem.gemm("mixed_mm", m=4, n=sum(WIDTHS), k=512, weight_dtype="int4", **kind)
    function = rendered(config, problem, False, False)
    each = ["B", "scale"] + (["zeros"] if packing == "low-first" else [])
    named = [f"{tensor}{part or ''}" for part in range(3) for tensor in each]
    assert [argument.arg for argument in function.args.args] == ["A", *named]
    source = ast.unparse(function)
    assert source.count("base_n = tl.where(") == 2
    assert "idx_out = M * base_n + idx_m * N + idx_n" in source
