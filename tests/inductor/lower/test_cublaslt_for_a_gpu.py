"""The output code of GEMMs that take an algorithm of cuBLASLt, generated where there is no GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.devices import H200
from torch._inductor import comms, ir
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V

from gemmdb import Config, Problem
from gemmdb.cublaslt import launch
from gemmdb.cublaslt.matmul import MAX_WORKSPACE
from gemmdb.cublaslt.shape import Matrix, Shape
from gemmdb.inductor.decide import legality
from gemmdb.inductor.lower.adapter import cublaslt
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Query

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs such code on a GPU")
VALUES = {
    "algo": 66, "tile": 601, "stages": 35, "split_k": 1, "reduction": 0, "swizzle": 0, "custom": 1, "inner": 0,
    "cluster": 2,
}  # fmt: skip
CONFIG = Config.of("cublaslt", "matmul", **VALUES)
BYTES = 1 << 20
M, N, K = 24, 256, 512


def linear(x, w):
    return torch.mm(x, w.t())


def biased(b, x, w):
    return torch.addmm(b, x, w.t())


def inside(x, w):
    return torch.mm(torch.narrow(x, 0, 8, M), torch.narrow(w, 1, 64, K).t())


def twice(x, w):
    return torch.relu(torch.mm(torch.relu(torch.mm(x, w.t())), w.t()))


def integers(x, w):
    return torch._int_mm(x, w.t())


def activated(b, x, w):
    return torch.mm(torch.relu(torch.addmm(b, x, w.t())), w)


def gelu(x, w):
    return torch.mm(torch.nn.functional.gelu(torch.mm(x, w.t()), approximate="tanh"), w)


def scaled(x, w, s, t):
    return torch._scaled_mm(x, w.t(), s, t, out_dtype=BF16)


def scaled_rows(x, w, s, t, b):
    """Computed scales, and a part of the bias."""
    return torch._scaled_mm(x, w.t(), s * 2, t, torch.narrow(b, 0, 8, N), out_dtype=BF16, use_fast_accum=True)


def scaled_blocks(x, w, s, t):
    return torch._scaled_mm(x, w.t(), s.t(), t.t(), out_dtype=torch.float32)


BF16, INT8, FP8, FP32 = torch.bfloat16, torch.int8, torch.float8_e4m3fn, torch.float32
PROGRAMS = {
    "mm": (linear, (M, K, BF16), (N, K, BF16)),
    "addmm": (biased, (N, BF16), (M, K, BF16), (N, K, BF16)),
    "full": (biased, (M, N, BF16), (M, K, BF16), (N, K, BF16)),
    "bmm": (torch.bmm, (4, M, K, BF16), (4, K, N, BF16)),
    "int_mm": (integers, (M, K, INT8), (N, K, INT8)),
    "scaled_mm": (scaled, (M, K, FP8), (N, K, FP8), (FP32,), (1, FP32)),
    "rows": (scaled_rows, (M, K, FP8), (N, K, FP8), (M, 1, FP32), (1, N, FP32), (N + 8, BF16)),
    "blocks": (scaled_blocks, (M, K, FP8), (N, K, FP8), (4, M, FP32), (2, 4, FP32)),
    "view": (inside, (M + 8, K, BF16), (N, 2 * K, BF16)),
    "twice": (twice, (M, K, BF16), (K, K, BF16)),
    "wide": (linear, (M, K, torch.float32), (N, K, torch.float32)),
}
ACTIVATIONS = {
    "relu": (activated, (N, BF16), (M, K, BF16), (N, K, BF16)),
    "gelu_tanh": (gelu, (M, K, BF16), (N, K, BF16)),
}
SPACES = {"plain": 0, "split": BYTES, "large": MAX_WORKSPACE + 1, "unsupported": None}


@contextmanager
def needing(size: int | None) -> Iterator[None]:
    """The algorithm needs so many bytes; None: the library does not support it."""

    def asked(*_: object) -> int:
        if size is None:
            raise launch.Refused("not supported")
        return size

    original, cublaslt.workspace = cublaslt.workspace, asked
    try:
        yield
    finally:
        cublaslt.workspace = original


def partitioned(x: Any, w: Any) -> Any:
    """A CUDA graph cannot hold the copy to the CPU between the two products."""
    y = torch.mm(x, w.t())
    return torch.mm(y, w.t()), y.cpu()


def found() -> dict[str, Any]:
    """By program, workspace and wrapper: what was taken, why not what was asked, and the code. Called in a process that
    pretends to have a GPU."""
    from kit import no_gpu
    from torch._inductor import config as inductor_config

    answers = {}
    for name, (program, *inputs) in PROGRAMS.items():
        for space, size in SPACES.items():
            for wrapper in ("python", "cpp"):
                if (space, wrapper) in (("plain", "python"), ("split", "python"), ("split", "cpp")) or name == "mm":
                    with needing(size), inductor_config.patch(cpp_wrapper=wrapper == "cpp"):
                        code, events = no_gpu.output_code(program, CONFIG, *inputs)
                    seen = {(event.config, event.note) for event in events}
                    answers[f"{name} {space} {wrapper}"] = [*map(list, seen), code]
    for activation, (program, *inputs) in ACTIVATIONS.items():
        config = Config.of("cublaslt", "matmul_activation", activation=activation, **VALUES)
        for wrapper in ("python", "cpp"):
            with needing(0), inductor_config.patch(cpp_wrapper=wrapper == "cpp"):
                code, events = no_gpu.output_code(program, config, *inputs)
            answers[f"{activation} {wrapper}"] = [events[0].config == config.text, events[1].config, code]
    code, events = no_gpu.output_code(linear, CONFIG, *PROGRAMS["mm"][1:])
    answers["mm asked python"] = [[events[0].config, events[0].note], code]
    with needing(BYTES), inductor_config.patch({"triton.cudagraphs": True}):
        code, _ = no_gpu.output_code(partitioned, CONFIG, (M, K, BF16), (K, K, BF16))
    answers["partitions"] = code
    return answers


def code(answers: dict[str, Any], name: str, space: str = "plain", wrapper: str = "python") -> str:
    """The code of a program whose GEMMs all took the config."""
    seen, text = answers[f"{name} {space} {wrapper}"]
    assert seen == [CONFIG.text, ""]
    return str(text)


def lines(text: str, *parts: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if all(part in line for part in parts)]


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
    assert "'fp32', 'bf16', 1, '', '', False)" in text
    assert re.search(r"gemmdb_cublaslt_\w+\(arg1_1, arg2_1, buf\d, get_raw_stream\(0\), None, arg0_1\)", text)


def test_a_batch_has_strides(answers):
    text = code(answers, "bmm")
    assert "prepare(torch.bmm, 0, " in text
    assert f"('bf16', True, {K}, {M * K}), ('bf16', True, {N}, {K * N}), ('bf16', True, {N}, {M * N})" in text


def test_integers_have_integer_sums(answers):
    text = code(answers, "int_mm")
    assert "prepare(torch._int_mm, 0, " in text
    assert f"('int32', True, {N}, {M * N}), 'int32', '', 1, '', '', False)" in text


def test_one_scale_for_each_operand(answers):
    text = code(answers, "scaled_mm")
    assert "prepare(torch._scaled_mm, 0, " in text
    assert (
        f"('fp8_e4m3', False, {K}, 0), ('bf16', True, {N}, {M * N}), 'fp32', '', 1, '', 'tensor', False), (0, 0, 0, 0)"
        in text
    )
    assert re.search(r"gemmdb_cublaslt_\w+\(arg0_1, arg1_1, buf\d, get_raw_stream\(0\), None, arg2_1, arg3_1\)", text)


def test_scales_of_rows_and_a_bias(answers):
    text = code(answers, "rows", "split")
    assert "'fp32', 'bf16', 1, '', 'row', True), (0, 0, 8, 0, 0)" in text
    assert re.search(
        r"gemmdb_cublaslt_\w+\(arg0_1, arg1_1, buf\d, get_raw_stream\(0\), buf\d, arg4_1, buf\d, arg3_1\)", text
    )


def test_scales_of_blocks_lie_by_columns(answers):
    text = code(answers, "blocks")
    assert f"('fp32', True, {N}, {M * N}), 'fp32', '', 1, '', 'block', False), (0, 0, 0, 0)" in text
    assert re.search(r"gemmdb_cublaslt_\w+\(arg0_1, arg1_1, buf\d, get_raw_stream\(0\), None, arg2_1, arg3_1\)", text)


def test_the_code_in_cpp_has_the_scales(answers):
    (fields,) = lines(code(answers, "rows", "split", "cpp"), f"{{{M}, {N}, {K}, 1, false, ")
    assert f", 68, 0, 14, 3, 3, true, {{{{2, 8, 1, {{{N}}}, {{1}}}}, {{4, 0, 2, {{{M}, 1}}, {{1, 1}}}}, " in fields
    assert "bias ? &bias : nullptr, nullptr, nullptr, 1);" in code(answers, "rows", "split", "cpp")


def test_offsets_are_those_of_the_views(answers):
    text = code(answers, "view")
    assert f"('bf16', True, {K}, 0), ('bf16', False, {2 * K}, 0)" in text
    assert f"({8 * K}, 64), 0)" in text


@pytest.mark.parametrize("name", ["mm", "addmm", "bmm", "int_mm", "scaled_mm", "view"])
def test_the_code_in_cpp_calls_the_library_itself(answers, name):
    text = code(answers, name, "split", "cpp")
    assert "gemmdb.cublaslt" not in text.partition("cpp_wrapper_src")[2].replace("gemmdb/cublaslt", "")
    assert text.count("struct Library {") == 1
    (defined,) = re.findall(r"static void (gemmdb_cublaslt_\w+)\(", text)
    (extras,) = re.findall(rf"\b{defined}\(\w+, \w+, buf\d, buf\d, (\w+, \w+, \w+)\);", text)
    wanted = {"addmm": "arg0_1, nullptr, nullptr", "scaled_mm": "nullptr, arg2_1, arg3_1"}
    assert extras == wanted.get(name, "nullptr, nullptr, nullptr")
    shim = {"int_mm": "_int_mm", "scaled_mm": "_scaled_mm", "view": "mm"}.get(name, name)
    assert f"return aoti_torch_cuda_{shim}_out(out, " in text


def test_the_code_in_cpp_has_the_attributes(answers):
    text = code(answers, "mm", "plain", "cpp")
    assert "{1, 601, 4}" in text
    assert "{6, 35, 4}" in text
    assert "{8, 2, 2}" in text
    (fields,) = lines(text, f"{{{M}, {N}, {K}, 1, false, ")
    assert fields.endswith(", 66, 0, 0}, attributes,")  # No library and no driver are here.


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_is_the_library_s(answers, activation):
    """No kernel of Triton's follows, and the other GEMM is ATen's."""
    taken, other, text = answers[f"{activation} python"]
    assert (taken, other) == (True, ATEN.text)
    assert not re.findall(r"    triton_\w+\.run\(", text)
    assert len(re.findall(r"    gemmdb_cublaslt_\w+\(", text)) == 1
    assert "extern_kernels.mm(" in text
    (prepared,) = lines(text, "gemmdb_cublaslt.prepare(")
    by_torch = "torch.relu_(torch.addmm(" if activation == "relu" else "torch.ops.aten.gelu_(torch.mm("
    assert f"prepare(lambda *operands, out: {by_torch}*operands, out=out)" in prepared
    offsets = (0, 0, 0) if activation == "relu" else (0, 0)  # The first has a bias.
    assert f", 1, '{activation}', '', False), {offsets}, 0)" in prepared


@pytest.mark.parametrize(("activation", "epilogue", "by_torch"), [
    ("relu", 6, "(bias, a, b, 1.0, 1.0, 0, &made)"), ("gelu_tanh", 32, "(out, a, b, 0.0, 1.0, 1, &made)"),
])  # fmt: skip
def test_an_activation_in_cpp(answers, activation, epilogue, by_torch):
    taken, _, text = answers[f"{activation} cpp"]
    assert taken
    assert f"aoti_torch_cuda__addmm_activation{by_torch}" in text
    assert f", {epilogue}, 0, 66, 0, 0}}, attributes," in text


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mm large python", "workspace of 33554433 bytes"),
        ("mm unsupported python", "not supported"),
        ("mm unsupported cpp", "not supported"),
        ("mm asked python", "cuBLASLt"),
        ("full plain python", "one number per column"),
        ("wide plain python", "operands of bf16, fp16, int8"),
    ],
)
def test_what_is_refused_is_aten(answers, name, reason):
    (taken, note), text = answers[name]
    assert taken == ATEN.text
    assert reason in note
    assert "gemmdb_cublaslt" not in text


def test_symbolic_sizes_are_refused():
    problem = Problem.gemm("mm", m=M, n=N, k=K)
    assert legality.rejection(CONFIG, Query(problem, H200, {})) is None
    assert "fixed sizes" in str(legality.rejection(CONFIG, Query(problem, H200, {"m": (1, 64)})))
