"""Our CUTLASS kernels in Inductor, as far as no GPU is needed: the source that they become, and what they refuse."""

import re
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from kit.devices import H200
from kit.lowered import Operand, Output, rendered
from torch._dynamo.source import ConstantSource
from torch._inductor import ir
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
    StrictMinMaxConstraint,
)
from torch.utils._sympy.value_ranges import ValueRanges

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.inductor.decide import legality
from gemmdb.inductor.decide.session import FORCED
from gemmdb.inductor.lower import cutlass as cutlass_kernels
from gemmdb.inductor.lower.adapter import cutlass, emission
from gemmdb.inductor.lower.triton import Operands, Refused
from gemmdb.kernels.cutlass import prebuilt
from gemmdb.key.problem import Query

CONFIG = Config.of(
    "cutlass", "gemm", tile_m=32, tile_n=128, tile_k=128, cluster_m=1, cluster_n=1, schedule="cooperative", split_k=0,
    swizzle=1, raster="auto", swap=1,
)  # fmt: skip


def lower(problem, operands):
    """The GEMM in Inductor's IR, by a policy that waits for nvcc."""
    return cutlass_kernels.lower(CONFIG, problem, operands, FORCED)


def test_the_source_is_ours_and_its_arguments_are_the_operands(tensor):
    problem = Problem.gemm("mixed_mm", m=24, n=256, k=512, fusion="scale")
    a = tensor("x", [24, 512], [512, 1], torch.bfloat16, offset=64)
    w, s = tensor("w", [512, 256], [1, 512], torch.int8), tensor("s", [256], [1], torch.bfloat16)
    kernel, source = rendered(lower(problem, Operands(a, w, s)))
    assert "#define GEMMDB_LEFT int8_t\n" in source
    (found,) = re.findall(
        r"(int (gemmdb_cutlass_[0-9a-f]{24})\(void const\* a, void const\* b, void const\* scale, void\* out, .*\)) {",
        source,
    )
    assert kernel.get_signature() == found[0]
    assert list(V.graph.wrapper_code.defined) == [found[1]] == [prebuilt.name(CONFIG, problem)]
    assert V.graph.wrapper_code.src_to_kernel == {source: found[1]}, "Inductor calls it by this name"
    assert kernel.get_dynamic_shape_args()[:8] == [24, 256, 512, 512, 512, 0, 1, 0]
    assert kernel.get_offset_args() == [128, 0, 0, 0]
    assert kernel.args.python_argdefs()[1][:3] == ["x", "w", "s"]


BLOCKS = Config.of("cutlass", "scaled_blocks", tile_m=64, tile_n=128, cluster_m=1, cluster_n=1, split_k=1, swap=0)


def in_blocks(tensor, m=48, scale_stride=(1, 48), dtype=torch.float32):
    """fp8 operands with block scales, A's with these strides."""
    a, w = (tensor(name, *how, torch.float8_e4m3fn) for name, how in
            (("x", ([m, 1024], [1024, 1])), ("w", ([1024, 512], [1, 1024]))))  # fmt: skip
    scales = tensor("r", [m, 8], list(scale_stride), dtype), tensor("s", [8, 4], [1, 8], torch.float32)
    return Operands(a, w, scales=scales)


def test_block_scales_and_the_steps_between_them_are_arguments(tensor):
    problem = Problem.gemm("scaled_mm", m=48, n=512, k=1024, scales="block")
    result = cutlass_kernels.lower(BLOCKS, problem, in_blocks(tensor), FORCED)
    kernel, source = rendered(result)
    (signature,) = re.findall(r"(int gemmdb_cutlass_[0-9a-f]{24}\(.*\)) {", source)
    assert kernel.get_signature() == signature
    assert "void const* a, void const* b, void const* scale, void const* row_scale, void* out" in signature
    assert kernel.get_dynamic_shape_args() == [48, 512, 1024, 1024, 1024, 48, 8, 0, 0]
    assert kernel.args.python_argdefs()[1][:4] == ["x", "w", "s", "r"]
    assert list(V.graph.wrapper_code.defined) == [prebuilt.name(BLOCKS, problem)]
    assert "place(scale, scale_offset), nullptr, place(out, out_offset)" in source


@pytest.mark.parametrize("how", [{"scale_stride": (8, 1)}, {"dtype": torch.float16}])
def test_block_scales_in_another_layout_are_refused(tensor, how):
    problem = Problem.gemm("scaled_mm", m=48, n=512, k=1024, scales="block")
    with pytest.raises(cutlass_kernels.Unavailable, match="do not lie as torch wants them"):
        cutlass_kernels.lower(BLOCKS, problem, in_blocks(tensor, **how), FORCED)


@pytest.mark.parametrize("columns", [True, False])
def test_the_scales_of_rows_and_a_bias_that_no_problem_names(tensor, columns):
    problem = Problem.gemm("int_mm", m=24, n=256, k=512, fusion="scale")
    a, w = tensor("x", [24, 512], [512, 1], torch.int8), tensor("w", [512, 256], [1, 512], torch.int8)
    s, r = tensor("s", [256], [1], torch.float32), tensor("r", [24], [1], torch.bfloat16, offset=8)
    b = tensor("b", [256], [1], torch.float16)
    operands = Operands(a, w, s if columns else None, None if columns else b, rows=r)
    kernel, source = rendered(lower(problem, operands))
    assert f"#define GEMMDB_SCALE {int(columns)}\n" in source
    assert "#define GEMMDB_ROW_SCALE 1\n#define GEMMDB_ROW_SCALE_TYPE cutlass::bfloat16_t\n" in source
    scale = "place(scale, scale_offset)" if columns else "nullptr"
    bias = "nullptr" if columns else "place(bias, bias_offset)"
    assert f"#define GEMMDB_BIAS {int(not columns)}\n" in source
    assert columns or "#define GEMMDB_BIAS_TYPE cutlass::half_t\n" in source
    pointers = f"place(a, a_offset), place(b, b_offset), {scale}, {bias}, place(out, out_offset)"
    assert f"Product product{{{pointers}, m, n, k, lda, ldb, place(row_scale, row_scale_offset)}};" in source
    assert kernel.get_offset_args() == [0, 0, *([0, 16] if columns else [16, 0]), 0]
    assert kernel.args.python_argdefs()[1][:-1] == (["x", "w", "s", "r"] if columns else ["x", "w", "r", "b"])
    with pytest.raises(Refused, match="24 elements"):
        lower(problem, Operands(a, w, None, rows=s))


def test_a_tensor_may_be_both_operands(tensor):
    problem = Problem.gemm("mm", m=512, n=512, k=512)
    x = tensor("x", [512, 512], [512, 1], torch.bfloat16)
    turned = ir.PermuteView.create(x, [1, 0])
    kernel, source = rendered(lower(problem, Operands(x, turned)))
    assert "place(a, a_offset), place(a, b_offset), nullptr" in source
    assert len(kernel.get_offset_args()) == 3


def test_operands_that_the_kernel_cannot_take_are_refused(tensor):
    problem = Problem.gemm("mixed_mm", m=24, n=256, k=512, fusion="scale")
    a, w = tensor("x", [24, 512], [512, 1], torch.bfloat16), tensor("w", [512, 256], [1, 512], torch.int8)
    moved = tensor("y", [24, 512], [512, 1], torch.bfloat16, offset=4)
    short = tensor("s", [128], [1], torch.bfloat16)
    for operands, reason in (((moved, w), "16 bytes"), ((a, w, short), "256 elements")):
        with pytest.raises(Refused, match=reason):
            lower(problem, Operands(*operands))
    with pytest.raises(Refused, match="an operand is"):
        lower(replace(problem, m=25), Operands(a, w))


@pytest.fixture
def rows(request):
    """A symbolic number of rows from 2 to 1024, its hint 24 or the test's parameter, in the graph that is being
    lowered."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    example = torch.empty(getattr(request, "param", 24), 1)
    mode = FakeTensorMode(shape_env=ShapeEnv(specialize_zero_one=False))
    context = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC],
        constraint_sizes=[StrictMinMaxConstraint(vr=ValueRanges(min(2, len(example)), 1024), warn_only=False), None],
    )
    size = mode.from_tensor(example, symbolic_context=context, source=ConstantSource("x")).shape[0]
    graph = GraphLowering(torch.fx.symbolic_trace(lambda x: x), shape_env=mode.shape_env)
    graph.wrapper_code = Output()
    with V.set_graph_handler(graph):
        yield Operand(graph), size.node.expr


@pytest.mark.parametrize("rows", [1], indirect=True)
def test_a_matrix_is_no_vector_where_the_hint_is_one_row(rows, monkeypatch):
    """The kernel would add its first row to all rows."""
    monkeypatch.setattr(cutlass, "compiler_rejection", lambda: None)
    tensor, m = rows
    problem = Problem.gemm("addmm", m=1, n=256, k=512, bias="full")
    a, w = tensor("x", [m, 512], [512, 1], torch.bfloat16), tensor("w", [512, 256], [1, 512], torch.bfloat16)
    vector, matrix = tensor("b", [1, 256], [256, 1], torch.bfloat16), tensor("c", [m, 256], [256, 1], torch.bfloat16)
    assert lower(problem, Operands(a, w, bias=vector, ranges={"m": (1, 1024)}))
    with pytest.raises(Refused, match="as many rows as the output"):
        lower(problem, Operands(a, w, bias=matrix, ranges={"m": (1, 1024)}))


def test_a_symbolic_m_is_an_argument(rows, monkeypatch):
    monkeypatch.setattr(cutlass, "compiler_rejection", lambda: None)
    tensor, m = rows
    problem = Problem.gemm("mixed_mm", m=24, n=256, k=512, fusion="scale")
    a = tensor("x", [m, 512], [512, 1], torch.bfloat16)
    w, s = tensor("w", [512, 256], [1, 512], torch.int8), tensor("s", [256], [1], torch.bfloat16)
    result = lower(problem, Operands(a, w, s, ranges={"m": (2, 1024)}))
    kernel, _ = rendered(result)
    assert kernel.get_dynamic_shape_args()[:5] == [m, 256, 512, 512, 512]
    assert list(result.get_size()) == [m, 256]
    # Stream-K: scratch for the largest M, of which 1024 rows are 32 tiles, and two columns of tiles.
    assert kernel.get_dynamic_shape_args()[8] >= 32 * 2 * 32 * 128 * 4
    apart = tensor("y", [m, 512], [m * 512, 1], torch.bfloat16)
    with pytest.raises(Refused, match="row stride of an operand is symbolic"):
        lower(problem, Operands(apart, w, s))


@pytest.mark.parametrize(
    ("ranges", "changes", "reason"),
    [
        ({"m": (2, None)}, {"split_k": 1}, None),
        ({"m": (2, 4096)}, {}, None),
        ({"m": (2, None)}, {}, "no bound"),
        ({"m": (0, 64)}, {"split_k": 1}, "size zero"),
        ({"n": (2, 64)}, {"split_k": 1}, "depends on N and K"),
    ],
)
def test_legality_over_a_range(ranges, changes, reason):
    problem = Problem.gemm("mixed_mm", m=24, n=256, k=512, fusion="scale")
    config = Config.of("cutlass", "gemm", **{**CONFIG.values, **changes})
    device = H200
    found = legality.rejection(config, Query(problem, device, ranges))
    assert found is None if reason is None else reason in str(found)


def test_a_graph_that_links_no_cuda_kernels_is_left_alone():
    graph = GraphLowering(torch.fx.symbolic_trace(lambda x: x), cpp_wrapper=True)
    with V.set_graph_handler(graph):
        tensor = Operand(graph)
        x = tensor("x", [512, 512], [512, 1], torch.bfloat16)
        with pytest.raises(Refused, match="only AOTInductor's C"):
            lower(Problem.gemm("mm", m=512, n=512, k=512, layout="nn"), Operands(x, x))


def test_on_a_cpu_the_kernel_is_refused_and_the_gemm_is_right():
    x, w = torch.randn(24, 64), torch.randn(64, 64)
    with gemmdb.inductor.force(CONFIG):
        result = torch.compile(lambda x, w: x @ w.t())(x, w)
    (entry,) = gemmdb.inductor.stats()["products"]
    assert "cutlass:gemm does not solve mm on cpu" in entry["note"]
    torch.testing.assert_close(result, x @ w.t())


def test_what_is_missing_is_said(monkeypatch, tmp_path):
    import torch._inductor.config as inductor_config

    cutlass.compiler_rejection.cache_clear()
    monkeypatch.setattr(cutlass.cutlass, "headers", lambda: None)
    assert "nvidia-cutlass" in str(cutlass.compiler_rejection())
    (tmp_path / "include" / "cutlass").mkdir(parents=True)
    (tmp_path / "include" / "cutlass" / "version.h").write_text("#define CUTLASS_MAJOR 3\n")
    cutlass.compiler_rejection.cache_clear()
    with inductor_config.patch({"cutlass.cutlass_dir": str(tmp_path)}):
        assert "not version 4" in str(cutlass.compiler_rejection())
    cutlass.compiler_rejection.cache_clear()


def test_the_headers_of_the_package_unless_the_user_has_their_own(monkeypatch, tmp_path):
    import torch._inductor.config as inductor_config
    from torch._inductor.codegen.cuda import compile_utils

    monkeypatch.setattr(compile_utils, "_cutlass_include_paths", cutlass.with_our_headers(lambda: ["theirs"]))
    monkeypatch.setattr(cutlass.cutlass, "headers", lambda: tmp_path / "package")
    assert compile_utils._cutlass_include_paths() == [str(tmp_path / "package")]
    (tmp_path / "include" / "cutlass").mkdir(parents=True)
    (tmp_path / "include" / "cutlass" / "version.h").write_text("#define CUTLASS_MAJOR 4\n")
    with inductor_config.patch({"cutlass.cutlass_dir": str(tmp_path)}):
        assert str(tmp_path / "package") not in compile_utils._cutlass_include_paths()


def test_code_is_compiled_for_the_capability_that_is_asked_for():
    from torch._inductor.codegen.cuda import compile_utils, cuda_env

    cuda_env.get_cuda_arch.cache_clear()
    with emission.compiling_for(90):
        assert "-gencode=arch=compute_90a,code=[sm_90a,compute_90a]" in compile_utils._nvcc_compiler_options()
    cuda_env.get_cuda_arch.cache_clear()


@pytest.mark.parametrize("op", ["mm", "addmm"])
def test_an_operand_in_another_memory_order_is_refused(tensor, op):
    """The kernel would read other elements, or memory of something else."""
    problem = Problem.gemm(op, m=24, n=256, k=512, layout="nn")
    a, w = tensor("x", [24, 512], [512, 1], torch.bfloat16), tensor("w", [512, 256], [1, 512], torch.bfloat16)
    b = tensor("b", [256], [1], torch.bfloat16) if op == "addmm" else None
    with pytest.raises(Refused, match="memory order"):
        lower(problem, Operands(a, w, bias=b))
