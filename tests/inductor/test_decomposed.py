"""GEMMs that torch decomposes before any pass: seen in every config, and exactly torch's own where no table has a
kernel for them. For a GPU they are traced on fake tensors."""

import pytest
import torch
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
from kit.inductor import left_alone
from kit.program_batch import ProgramBatch
from torch import nn
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.utils import fresh_inductor_cache, run_and_get_code
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import gemmdb.inductor
from gemmdb import Config, MissError
from gemmdb.inductor import force
from gemmdb.inductor.decide.decision import DECISION
from gemmdb.inductor.decide.session import ForcedSession
from gemmdb.inductor.entry import install
from gemmdb.inductor.lower.adapter.decomposition import DECOMPOSED
from gemmdb.inductor.observe.journal import JOURNAL

aten = torch.ops.aten


@pytest.fixture
def one_row(monkeypatch):
    """On this CPU, torch takes GEMMs of one row or one column apart as it does on a GPU with
    coordinate_descent_tuning."""
    table = select_decomp_table()

    def single(a, b):
        return a.shape[-2] == 1 or b.shape[-1] == 1

    def mm(a, b):
        return (a.float().unsqueeze(2) * b.float().unsqueeze(0)).sum(dim=1).to(a.dtype) if single(a, b) else plain(a, b)

    def bmm(a, b):
        return (a.unsqueeze(-1) * b.unsqueeze(1)).sum(dim=2) if single(a, b) else batched(a, b)

    plain, batched = table[aten.mm.default], table[aten.bmm.default]
    monkeypatch.setitem(table, aten.mm.default, mm)
    monkeypatch.setitem(table, aten.bmm.default, bmm)


GEMV = Config.of("triton", "gemv", block_n=4, block_k=64, unroll=1, dequant="cast", warps=4, stages=1)


def code(program, *inputs, dynamic=None):
    torch._dynamo.reset()
    found, sources = run_and_get_code(torch.compile(program, dynamic=dynamic), *inputs)
    if isinstance(found, torch.Tensor) and found.requires_grad:
        found.sum().backward()
    return [line.partition("#")[0] for source in sources for line in source.splitlines()]


def leaf(*sizes):
    return torch.randn(*sizes, requires_grad=True)


SMALL = {
    "dot": (lambda a, b: torch.relu(a @ b) + 1, (torch.randn(1, 64), torch.randn(64, 1))),
    "batched dot": (lambda a, b: torch.relu(a @ b), (torch.randn(3, 1, 64), torch.randn(3, 64, 1))),
    "outer": (lambda a, b: torch.relu(a @ b), (torch.randn(4, 1), torch.randn(1, 3))),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b).relu(), (torch.randn(8), torch.randn(1, 16), torch.randn(16, 8))),
    "addmm dot": (lambda c, a, b: torch.addmm(c, a, b, beta=2, alpha=3), (leaf(1), leaf(1, 64), leaf(64, 1))),
    "sum": (lambda c, a, b: (a @ b + c).relu(), (torch.randn(8), torch.randn(1, 16), torch.randn(16, 8))),
    "vector": (lambda w, v: torch.mv(w, v).relu(), (torch.randn(16, 8), torch.randn(8))),
    "training": (lambda a, b: torch.tanh(a @ b).sum(), (leaf(1, 64), leaf(64, 1))),
    "half": (lambda a, b: torch.relu(a @ b), (torch.randn(1, 64).bfloat16(), torch.randn(64, 1).bfloat16())),
}


def graphs(programs):
    """(number of programs, program, inputs): those without a gradient as one, each of the others by itself."""
    trained, others = [], []
    for program, inputs in programs.values():
        (trained if any(one.requires_grad for one in inputs) else others).append((program, inputs))
    together, inputs = zip(*others, strict=True)
    return [*((1, *one) for one in trained), (len(others), ProgramBatch(together), inputs)]


def missed(program, inputs):
    """`stats()` of a program that no table answers, whose code is torch's own."""
    plain = code(program, *inputs)
    with force(left_alone):
        assert code(program, *inputs) == plain
    return gemmdb.inductor.stats()


@pytest.mark.parametrize(("number", "program", "inputs"), graphs(SMALL), ids=["addmm dot", "training", "the others"])
def test_what_no_table_answers_is_torchs_own_code_and_is_reported(number, program, inputs):
    stats = missed(program, inputs)
    assert sum(entry["count"] for entry in stats["products"]) + sum(stats["uncovered"].values()) >= number
    assert stats["errors"] == []


ROWS = {
    "mm": (lambda a, b: torch.relu(a @ b), (torch.randn(1, 64), torch.randn(64, 32))),
    "mm and sum": (lambda a, b, c: (a @ b + c).relu(), (torch.randn(1, 64), torch.randn(64, 32), torch.randn(32))),
    "column": (lambda a, b: torch.relu(a @ b), (torch.randn(16, 64), torch.randn(64, 1))),
    "bmm": (lambda a, b: torch.relu(a @ b), (torch.randn(3, 1, 64), torch.randn(3, 64, 32))),
    "heads": (lambda a, b: torch.softmax(a @ b, -1), (torch.randn(3, 1, 64), torch.randn(3, 32, 64).transpose(1, 2))),
    "linear": (nn.functional.linear, (torch.randn(1, 64).bfloat16(), torch.randn(32, 64).bfloat16())),
    "mixed": (
        lambda x, w, s: (x @ w.t().to(x.dtype)) * s,
        (torch.randn(1, 64).bfloat16(), torch.randint(-9, 9, (32, 64), dtype=torch.int8), torch.randn(32).bfloat16()),
    ),
    "layers": (lambda x, v, w: torch.tanh(torch.tanh(x @ v) @ v) @ w, (leaf(1, 32), leaf(32, 32), leaf(32, 1))),
}


@pytest.mark.parametrize(("number", "program", "inputs"), graphs(ROWS), ids=["layers", "the others"])
def test_a_missed_gemm_of_one_row_is_torchs_own_code_and_is_reported(number, program, inputs, one_row):
    stats = missed(program, inputs)
    assert sum(entry["count"] for entry in stats["products"] if "torch decomposes it" in entry["note"]) >= number
    assert all("torch decomposes it" in entry["note"] for entry in stats["products"] if " m=1 " in entry["problem"])
    assert stats["errors"] == []


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_verdict_for_aten_leaves_torchs_own_code(kit, one_row, dynamic):
    x, w = torch.randn(1, 64), torch.randn(64, 48)
    plain = code(torch.matmul, x, w, dynamic=dynamic)
    with force(kit.ATEN):
        assert code(torch.matmul, x, w, dynamic=dynamic) == plain
    assert [entry["rung"] for entry in gemmdb.inductor.stats()["products"]] == ["forced"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gemm_of_one_row_is_served_what_the_table_says(kit, one_row, dtype):
    model = nn.Linear(64, 32, bias=False).eval().to(dtype)
    entry = kit.only(kit.forced(kit.CPP, model, torch.randn(1, 64, dtype=dtype), freezing=True))
    assert (entry["config"], entry["note"]) == (kit.CPP.text, "")


def test_an_int8_weight_of_one_row_is_served_what_the_table_says(kit, one_row):
    program, inputs = ROWS["mixed"]
    entry = kit.only(kit.forced(kit.INT8PACK, program, *inputs))
    assert entry["config"] == kit.INT8PACK.text
    assert entry["problem"].startswith("mixed_mm m=1 n=32 k=64")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_that_becomes_an_addmm_without_an_answer_ends_as_torch_has_it(one_row, gpu, dtype):
    """In the joint graph the GEMM has a kernel. Inductor then makes an addmm of the GEMM and the sum."""
    x, w, c = torch.randn(1, 64).to(dtype), torch.randn(32, 64).to(dtype), torch.randn(32).to(dtype)

    def program(x, w, c):
        return x @ w.t() + c

    plain = code(program, x, w, c)
    with force(lambda problem: GEMV if problem.op == "mm" else None, "only mm"):
        assert code(program, x, w, c) == plain
    (entry,) = gemmdb.inductor.stats()["products"]
    assert entry["problem"].startswith("addmm")
    assert "torch decomposes it" in entry["note"]


def test_strict_mode_names_a_gemm_that_torch_would_decompose(tmp_path, one_row):
    gemmdb.inductor.enable(on_miss="error")
    torch.compile(torch.matmul)(torch.randn(1, 64), torch.randn(64, 32))
    (product,) = gemmdb.inductor.stats()["products"]
    assert "ATen is the only kernel for it: gemmdb's CPU kernels need constant weights" in product["note"]
    # A constant weight has more kernels than ATen's.
    model = torch.nn.Linear(64, 32, bias=False).eval()
    frozen = inductor_config.patch(freezing=True)
    with torch.no_grad(), frozen, pytest.raises(Exception, match="no table answers for mm m=1 n=32 k=64") as caught:
        torch.compile(model)(torch.randn(1, 64))
    assert MissError.__name__ in f"{caught.value!r}{caught.value.__cause__!r}{caught.getrepr()}"


def test_a_graph_from_a_cache_reports_its_gemms_once(one_row):
    program, inputs = ROWS["mm"]
    found = []
    with (
        fresh_inductor_cache(),
        inductor_config.patch(fx_graph_cache=True),
        functorch_config.patch(enable_autograd_cache=False),
    ):
        for _ in range(2):
            with force(lambda problem: None, "key"):
                code(program, *inputs)
            found.append(gemmdb.inductor.stats()["products"])
            gemmdb.inductor.reset_stats()
    assert found[0] == found[1]
    assert [entry["count"] for entry in found[0]] == [1]


def test_disabled_gemmdb_leaves_tracing_alone(one_row):
    program, inputs = ROWS["mm"]
    gemmdb.inductor.enable(on_miss="aten")
    code(program, *inputs)
    assert len(gemmdb.inductor.stats()["products"]) == 1
    gemmdb.inductor.reset_stats()
    gemmdb.inductor.disable()
    code(program, *inputs)
    assert gemmdb.inductor.stats()["products"] == []


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


def kept(name, config):
    """(torch's own graph of ON_A_GPU[name], the one that keeps GEMMs whole, our passes for it)."""
    program, inputs = ON_A_GPU[name]()
    joint, post_grad = install.slots(ForcedSession(config, "key")).values()
    plain = traced(program, inputs, select_decomp_table())
    return plain, traced(program, inputs, joint.apart.keeping(select_decomp_table())), joint, post_grad


@pytest.mark.parametrize("tuning", [False, True])
@pytest.mark.parametrize("name", ON_A_GPU)
def test_on_a_gpu_a_missed_gemm_is_decomposed_as_torch_does_it(name, tuning, gpu):
    with FakeTensorMode(), inductor_config.patch(coordinate_descent_tuning=tuning):
        plain, found, joint, post_grad = kept(name, None)
        assert joint.apart.kept == (tuning and name in TAKEN)
        joint(found)
        assert targets(found) == targets(plain)
        post_grad(found)
        assert targets(found) == targets(plain)
    (event, *_) = JOURNAL.pending()
    assert (DECOMPOSED in event.note) == (tuning and name in TAKEN)
    assert gemmdb.inductor.stats()["errors"] == []


@pytest.mark.parametrize("name", TAKEN)
def test_on_a_gpu_a_gemm_with_a_kernel_stays_one(name, gpu):
    wanted = {"bmm": "aten.bmm.default", "mixed": "gemmdb.mixed_mm.default", "scaled": "gemmdb.mixed_mm.default"}
    tile = BATCHED if name == "bmm" else TILE
    with FakeTensorMode(), inductor_config.patch(coordinate_descent_tuning=True):
        _, found, joint, post_grad = kept(name, tile)
        joint(found)
        post_grad(found)
    products = [node for node in found.nodes if DECISION in node.meta]
    assert [str(node.target) for node in products] == [wanted.get(name, "aten.mm.default")]
    (event,) = JOURNAL.pending()
    assert (event.config, event.note) == (tile.text, "")
