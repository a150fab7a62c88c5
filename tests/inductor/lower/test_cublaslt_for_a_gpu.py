"""The output code in Python of GEMMs that take an algorithm of cuBLASLt, generated where there is no GPU."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")

from kit import cublaslt_code
from kit.cublaslt_code import ACTIVATIONS, BF16, BYTES, CONFIG, VALUES, K, M, N, code, lines
from kit.devices import H200
from torch._inductor import comms, ir
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V

from gemmdb import Problem
from gemmdb.cublaslt.shape import Matrix, Shape
from gemmdb.inductor.decide import legality
from gemmdb.inductor.lower.adapter import cublaslt
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Query

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs such code on a GPU")


def found():
    """Called in a process that pretends to have a GPU."""
    return cublaslt_code.generated("python") | cublaslt_code.generated_otherwise()


def test_the_call_and_what_it_needs_are_written_once(answers):
    text = code(answers, "mm")
    assert len(lines(text, "from gemmdb")) == 1
    assert "from gemmdb.cublaslt import launch as gemmdb_cublaslt" in text
    assert "import _cuda_getCurrentRawStream as get_raw_stream" in text
    (prepared,) = lines(text, "gemmdb_cublaslt.prepare(torch.mm, 0, ")
    name, _, arguments = prepared.partition(" = gemmdb_cublaslt.prepare")
    _, device, attributes, fields, offsets, workspace = eval(arguments, {"torch": torch})
    assert (device, attributes, offsets, workspace) == (0, VALUES, (0, 0), 0)
    assert fields[:6] == (M, N, K, ("bf16", True, K, 0), ("bf16", False, K, 0), ("bf16", True, N, M * N))
    assert lines(text, f"{name}(") == [f"{name}(arg0_1, arg1_1, buf0, get_raw_stream(0))"]
    assert "reinterpret_tensor(arg" not in text, "the call needs no view"
    assert "extern_kernels.mm" not in text


def test_a_workspace_is_a_buffer_of_the_graph(answers):
    text = code(answers, "mm", "split")
    (made,) = lines(text, f"empty_strided_cuda(({BYTES}, ), (1, ), torch.uint8)")
    space = made.partition(" ")[0]
    (call,) = re.findall(r"gemmdb_cublaslt_\w+\(arg.*", text)
    assert call.endswith(f"get_raw_stream(0), {space})")
    assert f"del {space}" in text
    assert "triton" not in text.partition("def call")[2], "nothing fills it"


def test_later_calls_reuse_the_memory(answers):
    text = code(answers, "twice", "split")
    assert len(lines(text, f"empty_strided_cuda(({BYTES}, )")) == 1
    assert len(lines(text, "get_raw_stream(0), buf")) == 2


def test_the_pointwise_work_is_a_kernel_of_its_own(answers):
    """As with ATen's GEMM, and the second GEMM is the same call."""
    text = code(answers, "twice")
    assert len(lines(text, "gemmdb_cublaslt.prepare")) == 1
    assert len(re.findall(r"    gemmdb_cublaslt_\w+\(", text)) == 2
    assert len(re.findall(r"    triton_\w+\.run\(", text)) == 2


def test_each_part_of_a_cuda_graph_s_program_calls_it(answers):
    text = answers["partitions"]
    assert len(lines(text, "import launch as gemmdb_cublaslt")) == 1
    assert len(lines(text, "gemmdb_cublaslt.prepare")) == 1
    (part,) = re.findall(r"def partition_0\(args\):.*?return", text, re.DOTALL)
    assert len(lines(part, "get_raw_stream(0), buf")) == 2
    assert len(lines(part, f"empty_strided_cuda(({BYTES}, )")) == 1


def test_inductor_takes_it_for_a_gemm_of_aten():
    """It overlaps such a node with communication, and estimates its time."""
    shape = Shape(M, N, K, Matrix("bf16", True, K), Matrix("bf16", True, N), Matrix("bf16", True, N))
    graph = GraphLowering(torch.fx.symbolic_trace(lambda x: x))
    graph.current_node = None
    with V.set_graph_handler(graph):
        a, b = (
            ir.StorageBox(ir.InputBuffer(name=name, layout=ir.FixedLayout(torch.device("cuda", 0), BF16, sizes)))
            for name, sizes in (("a", [M, K]), ("b", [K, N]))
        )
        made = cublaslt.gemm(cublaslt.Kernel("mm", shape, VALUES, 0), (a, b)).data.data
    assert comms.is_gemm_like(made)
    assert isinstance(made, ir.ExternKernelOut)
    assert (made.get_size(), made.get_stride(), made.get_dtype()) == ([M, N], [N, 1], BF16)


def test_a_bias_is_the_library_s(answers):
    text = code(answers, "addmm")
    assert "prepare(torch.addmm, 0, " in text
    assert "'fp32', 'bf16', 1, '', '', False, False)" in text
    assert re.search(r"gemmdb_cublaslt_\w+\(arg1_1, arg2_1, buf\d, get_raw_stream\(0\), None, arg0_1\)", text)


def test_a_matrix_is_added_where_it_lies(answers):
    """ATen copies it to the output first."""
    text = code(answers, "full")
    assert "prepare(torch.addmm, 0, " in text
    assert "'fp32', 'bf16', 1, '', '', False, True)" in text
    assert re.search(r"gemmdb_cublaslt_\w+\(arg1_1, arg2_1, buf\d, get_raw_stream\(0\), None, arg0_1\)", text)
    assert "triton" not in text.partition("def call")[2]


def test_a_batch_has_strides(answers):
    text = code(answers, "bmm")
    assert "prepare(torch.bmm, 0, " in text
    assert f"('bf16', True, {K}, {M * K}), ('bf16', True, {N}, {K * N}), ('bf16', True, {N}, {M * N})" in text


def test_integers_have_integer_sums(answers):
    text = code(answers, "int_mm")
    assert "prepare(torch._int_mm, 0, " in text
    assert f"('int32', True, {N}, {M * N}), 'int32', '', 1, '', '', False, False)" in text


def test_one_scale_for_each_operand(answers):
    text = code(answers, "scaled_mm")
    assert "prepare(torch._scaled_mm, 0, " in text
    sums = f"('bf16', True, {N}, {M * N}), 'fp32', '', 1, '', 'tensor', False, False)"
    assert f"('fp8_e4m3', False, {K}, 0), {sums}, (0, 0, 0, 0)" in text
    assert re.search(r"gemmdb_cublaslt_\w+\(arg0_1, arg1_1, buf\d, get_raw_stream\(0\), None, arg2_1, arg3_1\)", text)


def test_scales_of_rows_and_a_bias(answers):
    text = code(answers, "rows", "split")
    assert "'fp32', 'bf16', 1, '', 'row', True, False), (0, 0, 8, 0, 0)" in text
    assert re.search(
        r"gemmdb_cublaslt_\w+\(arg0_1, arg1_1, buf\d, get_raw_stream\(0\), buf\d, arg4_1, buf\d, arg3_1\)", text
    )


def test_scales_of_blocks_lie_by_columns(answers):
    text = code(answers, "blocks")
    assert f"('fp32', True, {N}, {M * N}), 'fp32', '', 1, '', 'block', False, False), (0, 0, 0, 0)" in text
    assert re.search(r"gemmdb_cublaslt_\w+\(arg0_1, arg1_1, buf\d, get_raw_stream\(0\), None, arg2_1, arg3_1\)", text)


def test_offsets_are_those_of_the_views(answers):
    text = code(answers, "view")
    assert f"('bf16', True, {K}, 0), ('bf16', False, {2 * K}, 0)" in text
    assert f"({8 * K}, 64), 0)" in text


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_is_the_library_s(answers, activation):
    """No kernel of Triton's follows, and the other GEMM is ATen's."""
    taken, other, text = answers[activation]
    assert (taken, other) == (True, ATEN.text)
    assert not re.findall(r"    triton_\w+\.run\(", text)
    assert len(re.findall(r"    gemmdb_cublaslt_\w+\(", text)) == 1
    assert "extern_kernels.mm(" in text
    (prepared,) = lines(text, "gemmdb_cublaslt.prepare(")
    by_torch = "torch.relu_(torch.addmm(" if activation == "relu" else "torch.ops.aten.gelu_(torch.mm("
    assert f"prepare(lambda *operands, out: {by_torch}*operands, out=out)" in prepared
    offsets = (0, 0, 0) if activation == "relu" else (0, 0)  # The first has a bias.
    assert f", 1, '{activation}', '', False, False), {offsets}, 0)" in prepared


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mm large", "workspace of 33554433 bytes"),
        ("mm unsupported", "not supported"),
        ("mm asked", "cuBLASLt"),
        ("wide plain", "operands of bf16, fp16, int8"),
    ],
)
def test_what_is_refused_is_aten(answers, name, reason):
    (taken, note), text = answers[name]
    assert taken == ATEN.text
    assert reason in note
    assert "gemmdb_cublaslt" not in text


def test_a_symbolic_number_of_columns_is_refused():
    problem = Problem.gemm("mm", m=M, n=N, k=K)
    for ranges in ({}, {"m": (1, 64)}):
        assert legality.rejection(CONFIG, Query(problem, H200, ranges)) is None
    assert "a fixed N and K" in str(legality.rejection(CONFIG, Query(problem, H200, {"n": (1, 64)})))
