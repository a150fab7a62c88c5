"""The operator that an int8- or uint8-weight GEMM becomes, and where it must be one."""

import pytest
import torch
from kit.devices import H200
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten
from torch.utils.flop_counter import FlopCounterMode

from gemmdb.inductor.decide.session import ForcedSession
from gemmdb.inductor.entry import install
from gemmdb.inductor.match import extract, mixed, ops
from gemmdb.kernels.config import ATEN

N, K = 32, 64


SCALED = {
    "after the product": lambda x, w, s: (x @ w.t().to(x.dtype)) * s,
    "before the product": lambda x, w, s: x @ (w.t().to(x.dtype) * s),
}


def traced(function, dtype=torch.bfloat16, weight=torch.int8, device="cpu", number_on=None):
    """The graph of a program of SCALED. `number_on`: the scale is a number on that device."""
    with FakeTensorMode():
        x, w = torch.empty(8, K, dtype=dtype, device=device), torch.empty(N, K, dtype=weight, device=device)
        s = torch.empty(() if number_on else N, dtype=dtype, device=number_on or device)
        return make_fx(function, select_decomp_table())(x, w, s).graph


def test_the_operator_itself(kit):
    mixed_mm = ops.overload("mixed_mm")
    assert ops.overload("mixed_mm") is mixed_mm
    a, w, s = torch.randn(8, K).bfloat16(), torch.randint(-9, 9, (K, N), dtype=torch.int8), torch.rand(N).bfloat16()
    kit.close(mixed_mm(a, w), a @ w.to(a.dtype))
    kit.close(mixed_mm(a, w, s), (a @ w.to(a.dtype)) * s)
    assert torch.equal(mixed_mm(a, w, s, True), a @ (w.to(a.dtype) * s))
    with FlopCounterMode(display=False) as counter:
        torch.ops.gemmdb.mixed_mm(a, w)
        torch.ops.gemmdb.mixed_mm(a, w, s, scale_first=True)
    assert counter.get_total_flops() == 2 * 2 * 8 * K * N
    for given in ((a, w), (a, w, s), (a, w, s, True)):
        torch.library.opcheck(mixed_mm, given, test_utils=("test_schema", "test_faketensor"))


def ints(*sizes):
    return torch.randint(-9, 9, sizes, dtype=torch.int8)


OPERATORS = {
    "mixed_mm": (torch.randn(8, K).bfloat16(), ints(K, N), torch.rand(N).bfloat16()),
    "mm_activation": (torch.rand(32, K), torch.rand(K, N), "gelu_tanh", torch.rand(N)),
    "int_mm_scaled": (ints(32, K), ints(K, N), torch.rand(N), torch.float16, torch.rand(32)),
    "short_sum": (torch.randn(5, 8, N).bfloat16(), torch.float32),
    "horizontal_mm": (torch.randn(8, K).bfloat16(), [ints(K, N), ints(K, 16)], [torch.rand(N), torch.rand(16)], []),
    "horizontal_int4": (
        torch.randn(8, 64).bfloat16(), [torch.randint(0, 256, (n, 32), dtype=torch.uint8) for n in (32, 16)],
        [torch.rand(n, 2).bfloat16() for n in (32, 16)], [], 32, "low-first",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_fake_tensors_take_each_operator(name):
    """On the device of the first operand, and with symbolic sizes."""
    ops.overload("mixed_mm")
    operator, given = getattr(torch.ops.gemmdb, name).default, OPERATORS[name]
    torch.library.opcheck(operator, given, test_utils=("test_schema", "test_faketensor"))
    wanted = operator(*given)
    with FakeTensorMode():
        fakes = tree_map_only(torch.Tensor, lambda one: torch.empty(one.shape, dtype=one.dtype, device="cuda"), given)
        found = operator(*fakes)
    assert (found.device.type, found.dtype, found.shape) == ("cuda", wanted.dtype, wanted.shape)
    tensors, spec = tree_flatten(given)
    traced = make_fx(lambda *tensors: operator(*tree_unflatten(tensors, spec)), tracing_mode="symbolic")(*tensors)
    (node,) = (node for node in traced.graph.nodes if node.target is operator)
    assert node.meta["val"].dtype == wanted.dtype
    assert not isinstance(node.meta["val"].shape[0], int)
    assert torch.equal(traced(*tensors), wanted)


def test_the_operator_scales_an_fp16_weight_first_where_the_program_does():
    a, w, s = torch.full((8, K), 16.0).half(), torch.full((K, N), 100, dtype=torch.int8), torch.rand(N).half() / 64
    assert not ops.overload("mixed_mm")(a, w, s).isfinite().any()
    assert torch.equal(ops.overload("mixed_mm")(a, w, s, True), a @ (w.half() * s))


def test_where_aten_is_the_best_on_a_gpu_inductor_may_not_take_its_slow_kernel(monkeypatch):
    """ATen's time in a table is that of a cast and a GEMM; on a GPU, Inductor's pattern is far slower."""
    cpu = extract.device(torch.device("cpu"))
    monkeypatch.setattr(extract, "device", lambda of: H200 if of.type == "cuda" else cpu)

    def rewritten(device, weight=torch.int8, config=ATEN, dtype=torch.bfloat16):
        graph = traced(SCALED["after the product"], dtype, weight=weight, device=device)
        install.slots(ForcedSession(config, "key"))["joint_custom_pre_pass"](graph)
        return any(node.target is ops.overload("mixed_mm") for node in graph.nodes)

    assert rewritten("cuda")
    assert not rewritten("cpu")
    # These are no patterns of Inductor's.
    assert not rewritten("cuda", torch.uint8)
    assert not rewritten("cuda", dtype=torch.float16)
    assert not rewritten("cuda", config=None)  # A miss is left as it is.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_only_an_fp16_weight_has_to_be_scaled_first(dtype):
    """bf16 has the range of fp32, and a weight-only kernel that scales after the GEMM."""
    for name, function in SCALED.items():
        graph = traced(function, dtype)
        (found,) = filter(None, map(mixed.find, graph.nodes))
        found.rewrite(graph)
        (node,) = (node for node in graph.nodes if node.target is ops.overload("mixed_mm"))
        assert (node.args[3:] == (True,)) == (dtype is torch.float16 and name == "before the product")


@pytest.mark.parametrize("function", SCALED.values(), ids=SCALED)
def test_a_number_that_is_on_the_cpu_scales_no_gemm_of_a_gpu(function):
    """Eager multiplies by it; a kernel cannot read it."""

    def scales(device):
        graph = traced(function, device="cuda", number_on=device)
        found = filter(None, map(mixed.find, graph.nodes))
        return [one.scale for one in found if one.scale is not None]

    assert not scales("cpu")
    assert len(scales("cuda")) == 1
