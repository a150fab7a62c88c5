"""What torch takes apart on a GPU before any pass: traced on fake tensors, for an H200."""

import pytest
import torch
import torch._inductor.config as inductor_config
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import gemmdb.inductor
from gemmdb import Config
from gemmdb.inductor.decide.decision import DECISION
from gemmdb.inductor.decide.session import ForcedSession
from gemmdb.inductor.entry import install
from gemmdb.inductor.lower.adapter.decomposing import APART
from gemmdb.inductor.observe.journal import JOURNAL

TILE = Config.of(
    "triton", "tile", block_m=16, block_n=64, block_k=64, group_m=8, split_k=1, reduce="none", swap=0, load="pointer",
    dequant="cast", warps=4, stages=3,
)  # fmt: skip
BATCHED = Config.of("triton", "inductor_bmm", block_m=16, block_n=64, block_k=64, group_m=8, stages=3, warps=4)


def vectors(dtype, rows=1):
    return torch.empty(rows, 64, dtype=dtype, device="cuda"), torch.empty(32, 64, dtype=dtype, device="cuda")


def ints(*sizes):
    return torch.empty(*sizes, dtype=torch.int8, device="cuda")


ON_A_GPU = {
    "mm": lambda: (lambda x, w: torch.relu(x @ w.t()), vectors(torch.bfloat16)),
    "fp32": lambda: (lambda x, w: torch.relu(x @ w.t()), vectors(torch.float32)),
    "sum": lambda: (lambda x, w: x @ w.t() + 1, vectors(torch.float16)),
    "column": lambda: (lambda x, w: w @ x.t(), vectors(torch.bfloat16)),
    "bmm": lambda: (lambda x, w: x.expand(2, 1, 64) @ w.t().expand(2, 64, 32), vectors(torch.bfloat16)),
    "mixed": lambda: (lambda x, w: x @ w.t().to(x.dtype), (vectors(torch.bfloat16)[0], ints(32, 64))),
    "scaled": lambda: (
        lambda x, w, s: (x @ w.t().to(x.dtype)) * s,
        (vectors(torch.bfloat16)[0], ints(32, 64), torch.empty(32, dtype=torch.bfloat16, device="cuda")),
    ),
    "outer": lambda: (lambda x, w: x.narrow(1, 0, 1) @ w.narrow(1, 0, 1).t(), vectors(torch.bfloat16, rows=8)),
    "vector": lambda: (lambda x, w: torch.mv(w, x.select(0, 0)), vectors(torch.bfloat16)),
    "addmm": lambda: (lambda x, w: torch.addmm(w.select(1, 0), x, w.t()), vectors(torch.bfloat16)),
    "many rows": lambda: (lambda x, w: torch.relu(x @ w.t()), vectors(torch.bfloat16, rows=8)),
}
TAKEN = ("mm", "fp32", "sum", "column", "bmm", "mixed", "scaled")


def traced(program, inputs, table):
    graph = make_fx(program, table)(*inputs).graph
    graph.eliminate_dead_code()
    return graph


def targets(graph):
    """What a graph computes: each node's operator, arguments, dtype, sizes and strides."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    found = []
    for node in graph.nodes:
        value = node.meta.get("val")
        shape = (value.dtype, value.shape, value.stride(), value.device) if isinstance(value, torch.Tensor) else None
        found.append((str(node.target), torch.fx.map_arg(node.args, place.__getitem__), dict(node.kwargs), shape))
    return [entry if entry[0] != "output" else entry[1:] for entry in found]


@pytest.mark.parametrize("tuning", [False, True])
@pytest.mark.parametrize("name", ON_A_GPU)
def test_on_a_gpu_a_missed_product_is_taken_apart_as_torch_does_it(name, tuning, gpu):
    with FakeTensorMode(), inductor_config.patch(coordinate_descent_tuning=tuning):
        program, inputs = ON_A_GPU[name]()
        plain = traced(program, inputs, select_decomp_table())
        passes = install.slots(ForcedSession(lambda problem: None, "key"))
        joint, post_grad = passes.values()
        found = traced(program, inputs, joint.whole.keeping(select_decomp_table()))
        assert joint.whole.kept == (tuning and name in TAKEN)
        joint(found)
        assert targets(found) == targets(plain)
        post_grad(found)
        assert targets(found) == targets(plain)
    (event, *_) = JOURNAL.pending()
    assert (APART in event.note) == (tuning and name in TAKEN)
    assert gemmdb.inductor.stats()["errors"] == []


@pytest.mark.parametrize("name", TAKEN)
def test_on_a_gpu_a_product_with_a_kernel_stays_one(name, gpu):
    wanted = {"bmm": "aten.bmm.default", "mixed": "gemmdb.mixed_mm.default", "scaled": "gemmdb.mixed_mm.default"}
    tile = BATCHED if name == "bmm" else TILE
    with FakeTensorMode(), inductor_config.patch(coordinate_descent_tuning=True):
        program, inputs = ON_A_GPU[name]()
        passes = install.slots(ForcedSession(lambda problem: tile, "key"))
        joint, post_grad = passes.values()
        found = traced(program, inputs, joint.whole.keeping(select_decomp_table()))
        joint(found)
        post_grad(found)
    products = [node for node in found.nodes if DECISION in node.meta]
    assert [str(node.target) for node in products] == [wanted.get(name, "aten.mm.default")]
    (event,) = JOURNAL.pending()
    assert (event.config, event.note) == (tile.text, "")
