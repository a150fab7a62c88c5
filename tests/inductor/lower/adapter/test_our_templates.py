"""Our Triton templates under Inductor's own template engine."""

import ast
from dataclasses import replace
from pathlib import Path

import jinja2
import pytest
from kit.devices import H200
from kit.gpu import make
from torch._inductor.codegen.common import KernelTemplate

from gemmdb.inductor.decide import legality
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.inductor.lower.adapter import templates
from gemmdb.kernels import triton
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.registry import KERNELS
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Operand
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import Toolchain
from gemmdb.settings import Policy
from gemmdb.table.measurement import Measurement, Protocol, Status, Times
from gemmdb.table.writer import Store

TILE = {
    "block_m": 16, "block_n": 64, "block_k": 128, "group_m": 8, "split_k": 1, "reduce": "none", "swap": 0,
    "load": "pointer", "dequant": "bits", "warps": 4, "stages": 3,
}  # fmt: skip
PERSISTENT = {
    "block_m": 64, "block_n": 128, "block_k": 64, "group_m": 8, "swap": 0, "dequant": "cast", "resident": 2, "warps": 4,
    "stages": 3,
}  # fmt: skip
NARROW = {
    "block_m": 16, "block_n": 64, "block_k": 128, "split_k": 1, "swap": 0, "stagger": 1, "rows": "mask",
    "dequant": "cast", "warps": 4, "stages": 3,
}  # fmt: skip
GEMV = {"block_n": 8, "block_k": 256, "unroll": 2, "dequant": "cast", "warps": 4, "stages": 5}


HOOKS = {
    "def_kernel": lambda *names: f"def kernel({', '.join(names)}):",
    "size": lambda name, dim: f"{name}.size{dim}",
    "stride": lambda name, dim: f"{name}.stride{dim}",
    "store_output": lambda indices, value, mask, indent_width=4, val_shape=None: f"store({value}, {mask})",
}  # fmt: skip


def arguments(text: str) -> list[str]:
    """Those of the function that a template became."""
    function = ast.parse(text.strip()).body[0]
    assert isinstance(function, ast.FunctionDef)
    return [argument.arg for argument in function.args.args]


@pytest.mark.parametrize(
    ("kernel", "values"),
    [
        ("tile", TILE), ("tile", {**TILE, "slices": 2}), ("gemv", GEMV), ("persistent", PERSISTENT), ("narrow", NARROW)
    ],
)  # fmt: skip
def test_the_hooks_are_those_that_inductor_gives(kernel: str, values: dict[str, str | int]) -> None:
    problem = Problem.gemm("mixed_mm", m=4, n=512, k=512, fusion="scale")
    template = KernelTemplate._template_from_string(triton.source(kernel))
    names = triton.names(Config.of("triton", kernel, **values), problem)
    text = template.render(**names, **HOOKS)
    assert "store(acc, mask)" in text
    assert ("scale" in arguments(text)) == (kernel in ("gemv", "narrow"))
    names.pop("MIXED")
    with pytest.raises(jinja2.UndefinedError):
        template.render(**names, **HOOKS)


@pytest.mark.parametrize(("flags", "operands"), [
    ({}, ["A", "B", "scale"]), ({"packing": "low-first", "zeros": "uint8"}, ["A", "B", "scale", "zeros"]),
])  # fmt: skip
def test_the_hooks_of_an_int4_weight(flags: dict[str, str], operands: list[str]) -> None:
    problem = Problem.gemm("mixed_mm", m=4, n=512, k=512, weight_dtype="int4", **flags)  # type: ignore[arg-type]
    for config in (make("int4"), make("int4", scaled="sums"), make("int4_skinny")):
        template = KernelTemplate._template_from_string(triton.source(config.kernel))
        text = template.render(**triton.names(config, problem), **HOOKS)
        assert arguments(text) == operands
        assert "store(acc, mask)" in text


@pytest.mark.parametrize("load", ["pointer", "tma"])
@pytest.mark.parametrize(("ragged", "layout"), [("m", "nt"), ("m", "nn"), ("k", "tn")])
def test_the_template_of_groups_counts_dimensions_from_the_last(ragged: str, layout: str, load: str) -> None:
    """B has three where the groups divide M, and two where they divide K."""
    problem = Problem.gemm("grouped_mm", m=64, n=512, k=512, ragged=ragged, layout=layout)
    template = KernelTemplate._template_from_string(triton.source("grouped"))
    asked: set[tuple[str, int]] = set()

    def measure(name: str, dim: int) -> str:
        asked.add((name, dim))
        return f"{name}_{abs(dim)}"

    text = template.render(
        **triton.names(make("grouped", load=load), problem), size=measure, stride=measure,
        def_kernel=lambda *names: f"def kernel({', '.join(names)}):",
        store_output=lambda indices, value, mask, indent_width=4, val_shape=None: f"store({len(indices)}, {mask})",
    )  # fmt: skip
    assert arguments(text) == ["A", "B", "offsets"]
    assert {dim for name, dim in asked if name == "B"} == ({0, -1, -2} if ragged == "m" else {-1, -2})
    assert ("store(2, mask)" in text, "store(3, mask)" in text) == (ragged == "m", ragged == "k")


def tile(**changes: str | int) -> Config:
    return Config.of("triton", "tile", **{**TILE, "dequant": "cast", **changes})


def query(m: int = 16, **ranges: tuple[int, int | None]) -> Query:
    return Query(Problem.gemm("mm", m=m, n=512, k=512), H200, ranges)


def over(m: tuple[int, int | None]) -> Query:
    return replace(query(), ranges={"m": m})


def mixed(weight_dtype: str) -> Query:
    return Query(Problem.gemm("mixed_mm", m=4, n=512, k=512, weight_dtype=weight_dtype), H200, {})


PADDED = replace(query().problem, a=Operand("bf16", Layout("row-padded", 8)))


def test_a_template_is_registered_once_under_a_name_that_holds_its_source() -> None:
    ours = [kernel.name for kernel in KERNELS.values() if kernel.template]
    assert len(ours) >= 4
    for name in ours:
        template = templates.registered(name)
        assert template is templates.registered(name)
        assert template.name == f"gemmdb_{name}_{triton.digest(name)}"
        assert template.name.isidentifier()


def test_a_grid_covers_the_output_and_the_slices_of_k() -> None:
    assert templates.grid("tile")(33, 130, {"BLOCK_M": 16, "BLOCK_N": 64, "SPLIT_K": 4}) == (9, 4, 1)
    assert templates.grid("gemv")(3, 130, {"BLOCK_N": 16}) == (9, 1, 1)
    for most in (5, 6, 264):
        found = templates.grid("persistent")(33, 130, {"BLOCK_M": 16, "BLOCK_N": 64, "PROGRAMS": most})
        assert found == (min(most, 9), 1, 1)


def write(path: Path, problems: Problem | list[Problem], times: dict[Config, float]) -> Path:
    problems = problems if isinstance(problems, list) else [problems]
    toolchain, protocol = Toolchain(torch="2.11.0", triton="3.6.0", cuda="13.0"), Protocol("graph", "cold", 10, 25)
    with Store.open(path) as store:
        store.add(
            Measurement(problem, config, H200, protocol, toolchain, "run", Status.OK, Times(us, us, us, 25, 100.0))
            for problem in problems
            for config, us in {ATEN: 100.0, **times}.items()
        )
        store.refresh()
    return path


def test_the_next_best_is_served_for_what_cannot_be_lowered(tmp_path: Path) -> None:
    best, other, slow = tile(load="tma"), tile(split_k=2, reduce="kernel"), tile()
    path = write(tmp_path / "table.db", query(1).problem, {best: 50.0, other: 60.0, slow: 90.0})
    found = TableSession(Policy(), [path]).find(query(1))
    assert found is not None
    assert (found.config, found.evidence["pick"]) == (other, best.text)
    assert list(found.evidence["left_out"]) == [best.text]
    assert found.expected_us == pytest.approx(60.0, rel=1e-3)
    denied = TableSession(Policy(deny="reduce=kernel"), [path]).find(query(1))
    assert denied is not None
    assert denied.config == slow


GEMV_CONFIG, NARROW_CONFIG = Config.of("triton", "gemv", **GEMV), Config.of("triton", "narrow", **NARROW)
PERSISTENT_CONFIG = Config.of("triton", "persistent", **PERSISTENT)
MANY_TILES = replace(query(), problem=Problem.gemm("mm", m=16384, n=1088, k=512))


@pytest.mark.parametrize(("config", "asked", "reason"), [
    (tile(), query(), None), (tile(split_k=2, reduce="kernel"), query(), None),
    (tile(split_k=2, reduce="fixup"), query(), None), (tile(split_k=2, reduce="fixup"), MANY_TILES, "16384 tiles"),
    (tile(), query(n=(2, 1024)), None), (tile(), query(m=16, k=(2, None)), None), (tile(load="tma"), query(), None),
    (tile(swap=1), query(), None), (tile(), mixed(weight_dtype="int8"), None),
    (GEMV_CONFIG, mixed(weight_dtype="int8"), None), (tile(), mixed(weight_dtype="uint8"), None),
    (tile(), replace(query(), problem=Problem.gemm("int_mm", m=32, n=512, k=512)), None),
    (tile(), replace(query(), problem=PADDED), None), (tile(load="tma"), query(1), "a size of 1"),
    (GEMV_CONFIG, query(), "more than 8"), (PERSISTENT_CONFIG, query(256), None), (NARROW_CONFIG, query(1), None),
    (Config.of("triton", "narrow", **NARROW | {"split_k": 2}), MANY_TILES, "16384 tiles"),
    (PERSISTENT_CONFIG, query(1), "a size of 1"),
    # What a kernel assumes holds for every value of a symbolic size.
    (tile(), over((2, None)), None), (tile(load="tma"), over((2, None)), None),
    (PERSISTENT_CONFIG, over((2, None)), None), (NARROW_CONFIG, over((0, 64)), None),
    (tile(load="tma"), query(k=(2, 512)), "rows of a known length"), (tile(load="tma"), query(n=(2, 512)), None),
    (GEMV_CONFIG, query(4, n=(2, 512), k=(2, 512)), None),
    (GEMV_CONFIG, replace(query(4), ranges={"m": (2, 8)}), "more than 8"),
    (tile(split_k=4, reduce="kernel"), query(k=(128, 512)), "at m=16 n=512 k=128: K=128 has fewer than 4 steps"),
    (tile(split_k=2, reduce="fixup"), over((2, 4096)), None),
    (tile(split_k=2, reduce="fixup"), over((2, None)), "no bound"),
    (tile(split_k=2, reduce="fixup"), over((2, 2**16)), "16384 tiles"),
    (Config.of("triton", "narrow", **NARROW | {"split_k": 2}), over((2, None)), "no bound"),
    (tile(), over((2, 2**23)), "32 bits wide"),
])  # fmt: skip
def test_what_cannot_be_lowered_has_a_reason(config: Config, asked: Query, reason: str | None) -> None:
    found = legality.rejection(config, asked)
    assert found is None if reason is None else reason in str(found)


def test_a_transposed_activation_of_symbolic_rows_has_no_tensor_map() -> None:
    asked = Query(Problem.gemm("mm", m=512, n=512, k=512, layout="tn"), H200, {"m": (2, None)})
    assert "rows of a known length" in str(legality.rejection(tile(load="tma"), asked))
    assert legality.rejection(tile(load="tma"), replace(asked, ranges={"k": (2, None)})) is None


def test_the_next_best_that_holds_over_the_range_is_served(tmp_path: Path) -> None:
    counting, steady = tile(split_k=2, reduce="fixup"), tile()
    problems = [query().problem.resized(2**e, 512, 512) for e in range(17)]
    path = write(tmp_path / "table.db", problems, {counting: 49.9, steady: 50.0})
    one = TableSession(Policy(), [path])
    found = one.find(over((2, 64)))
    assert found is not None
    assert found.config in (counting, steady)
    found = one.find(over((2, None)))
    assert found is not None
    assert found.config == steady
