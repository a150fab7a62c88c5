"""Output code: generated without being run, read, and loaded."""

import contextlib

import pytest
import torch
from torch._inductor.fx_passes import joint_graph
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from gemmdb import Config, Problem
from gemmdb.cublaslt import launch
from gemmdb.cublaslt.matmul import MAX_WORKSPACE
from gemmdb.cublaslt.shape import Matrix, Shape
from gemmdb.inductor.lower import inductor_templates
from gemmdb.inductor.lower.adapter import cublaslt, emission

KERNELS = """
first = async_compile.triton('first', '''
def first(a):
    return "async_compile.triton"
''', device_str='cuda')
second = async_compile.triton('second', 'body', device_str='cuda')
third = async_compile.cuda(r'''
int x;
''', 'so', aot_compile=False)
other = async_compile.cpp_pybinding(['float*'], 'no kernel of that kind')
"""


@pytest.fixture
def generated():
    with torch.no_grad(), FakeTensorMode():
        inputs = torch.empty(4, 8), torch.empty(8, 3)
        graph = make_fx(lambda a, b: torch.mm(a, b))(*inputs)
    return emission.output_code(graph, inputs, lambda: "seen")


def test_code_is_generated_loaded_and_right(generated, tmp_path):
    source, seen = generated
    assert seen == "seen"
    path = tmp_path / "code.py"
    path.write_text(source)
    function = emission.load(path)
    a, b = torch.randn(4, 8), torch.randn(8, 3)
    arguments = [a, b]
    (found,) = function(arguments)
    assert arguments == []
    torch.testing.assert_close(found, a @ b)


def test_what_generates_code_leaves_inductor_as_it_was(generated):
    a, b = torch.randn(4, 8), torch.randn(8, 3)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(torch.mm)(a, b), a @ b)


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="shown by what fails where there is no GPU")
def test_neither_patterns_nor_fake_tensors_touch_a_gpu(monkeypatch):
    """There is no CUDA, or no driver: whatever asks for a GPU's memory raises."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda check=False: "cuda")
    with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA"):
        fake_tensor.init_gpu_context.__wrapped__(torch.device("cuda", 0))
    before = joint_graph.lazy_init
    with emission.no_gpu_context():
        fake_tensor.init_gpu_context(torch.device("cuda", 0))
        joint_graph.lazy_init(torch.device("cuda", 0))
    assert joint_graph.lazy_init is before


def test_code_that_calls_cublaslt_is_generated_without_its_library(monkeypatch):
    monkeypatch.setattr(launch.library, "loaded", lambda: None)
    bf16 = Matrix("bf16", True, 64)
    asked = Shape(64, 64, 64, bf16, bf16, bf16), torch.device("cuda", 0), {"algo": 66}
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    with emission.compiling_for(90):
        assert cublaslt.workspace(*asked) == MAX_WORKSPACE
    with pytest.raises(launch.Refused):
        cublaslt.workspace(*asked)


def test_kernels_are_found_in_code():
    first, second = emission.triton_kernels(KERNELS)
    assert first[0] == "first"
    assert first[1].startswith("\ndef first(a):")
    assert second == ("second", "body")
    assert emission.cuda_kernels(KERNELS) == ["\nint x;\n"]


@pytest.mark.parametrize(("k", "even"), [(512, True), (520, False)])
def test_what_depends_on_sizes_is_computed_for_the_problem_at_hand(k, even):
    tile = {"block_m": 64, "block_n": 32, "block_k": 64, "group_m": 8, "stages": 3, "warps": 4}
    config = Config.of("triton", "inductor_mm", **tile)
    found = inductor_templates.constants(config, Problem.gemm("mm", m=64, n=64, k=k))
    assert found["EVEN_K"] is even
    assert (found["BLOCK_M"], found["BLOCK_N"], found["BLOCK_K"], found["GROUP_M"]) == (64, 32, 64, 8)
    assert (found["ACC_TYPE"], found["ALLOW_TF32"]) == ("tl.float32", False)
    integer = inductor_templates.constants(config, Problem.gemm("int_mm", m=64, n=64, k=k))
    assert integer["ACC_TYPE"] == "tl.int32"
