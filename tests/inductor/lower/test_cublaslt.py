"""Output code that calls cuBLASLt, run on a CPU: against a library in its place, and where torch has to take over."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit import cublaslt

BEGIN = """
import ctypes, logging, torch
from torch._inductor import config, graph, utils
from torch._dynamo.utils import counters
import gemmdb.inductor
from gemmdb import Config
from gemmdb.inductor.lower.adapter import cublaslt
from gemmdb.inductor.match import extract
from kit.cublaslt import opened
from kit.devices import H200

path, way, workspace, refuses = sys.argv[1:5]
standing = opened(path)
if standing:
    for name, value in (("workspace", workspace), ("refuses", refuses)):
        ctypes.c_int.in_dll(standing, name).value = int(value)
warned = []
logging.getLogger("gemmdb").addFilter(lambda record: warned.append(record.getMessage()))
# Products on this CPU are those of an H200, whose inputs Inductor aligns.
extract.device = lambda of: H200
graph.should_assume_input_aligned = utils.tensor_is_aligned
cublaslt.workspace = lambda *asked: 64
CONFIG = Config.of(
    "cublaslt", "matmul", algo=66, tile=601, stages=35, split_k=1, reduction=0, swizzle=0, custom=1, inner=0, cluster=2
)
BY_ROWS = not torch.__version__.startswith("2.11")  # ATen takes row scales on a CPU from torch 2.12 on.
torch.manual_seed(0)

def rand(*sizes):
    return torch.randn(sizes).bfloat16()

def ints(*sizes):
    return torch.randint(-9, 9, sizes, dtype=torch.int8)

def fp8(*sizes):
    return torch.randn(sizes).to(torch.float8_e4m3fn)

def apart(found, wanted):
    return [float((one.double() - other.double()).abs().max() / other.double().abs().max())
            for one, other in zip(found, wanted, strict=True)]

class Products(torch.nn.Module):
    def forward(self, x, w, b, c, y, z, i, j, f, g, s, t):
        p = torch.mm(x[8:], w[:, 64:128].t())
        q = torch.addmm(b[8:], x, w[8:, :64].t())
        r = torch._scaled_mm(f, g.t(), s[0], t[0, 0], out_dtype=torch.float32)
        rows = (s[8:] * 2, t) if BY_ROWS else (s[8] * 2, t[0, :1])
        u = torch._scaled_mm(f[8:], g.t(), *rows, b[8:], out_dtype=torch.bfloat16, use_fast_accum=True)
        v = torch.addmm(c[8:], x, w[8:, :64].t())
        return p, q + 1, torch.bmm(y, z.transpose(1, 2)[:, :, 8:]), torch._int_mm(i, j), r, u, v

INPUTS = (
    rand(32, 64), rand(40, 192), rand(40), rand(40, 32), rand(3, 24, 64), rand(3, 40, 64), ints(24, 64),
    ints(32, 64).t(), fp8(32, 64), fp8(32, 64), torch.rand(32, 1), torch.rand(1, 32),
)
"""
PRODUCTS = (
    BEGIN
    + """
with torch.no_grad(), gemmdb.inductor.force(CONFIG, "test"), config.patch(cpp_wrapper=way == "cpp"):
    run = torch.compile(Products())
    for _ in range(2):
        found = run(*INPUTS)
stats = gemmdb.inductor.stats()
print(json.dumps({
    "apart": apart(found, Products()(*INPUTS)), "warned": warned,
    "cached": counters["inductor"]["fxgraph_cache_hit"], "errors": stats["errors"],
    "taken": sorted(product["config"] == CONFIG.text for product in stats["products"]),
    "calls": ctypes.c_int.in_dll(standing, "calls").value if standing else 0,
}))
"""
)
ACTIVATIONS = (
    BEGIN
    + """
def relu(x, w, b, v):
    return torch.relu(torch.addmm(b, x, w.t())) @ v

def gelu(x, w, b, v):
    return torch.nn.functional.gelu(torch.mm(x, w.t()), approximate="tanh") @ v

def tokens(x, w, b, v):
    return torch.nn.functional.gelu(torch.nn.functional.linear(x[None], w, b), approximate="tanh") @ v

given = rand(24, 64), rand(40, 64), rand(40), rand(40, 32)
results = {}
for model, activation in (relu, "relu"), (gelu, "gelu_tanh"), (tokens, "gelu_tanh"), (tokens, "relu"):
    forced = Config.of("cublaslt", "matmul_activation", activation=activation, **CONFIG.values)
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    before = ctypes.c_int.in_dll(standing, "calls").value if standing else 0
    patched = config.patch(cpp_wrapper=way == "cpp", fx_graph_cache=False)
    with torch.no_grad(), gemmdb.inductor.force(forced), patched:
        found = torch.compile(model)(*given)
    stats = gemmdb.inductor.stats()
    results[f"{model.__name__} {activation}"] = {
        "apart": apart([found], [model(*given)]), "errors": stats["errors"],
        "taken": [product["config"] == forced.text for product in stats["products"]],
        "notes": [product["note"] for product in stats["products"]],
        "calls": (ctypes.c_int.in_dll(standing, "calls").value if standing else 0) - before,
    }
print(json.dumps({"results": results, "warned": warned}))
"""
)
TRAINING = (
    BEGIN
    + """
def model(x, w, v):
    return torch.relu(x @ w) @ v

given = [torch.randn(sizes).bfloat16().requires_grad_() for sizes in ((24, 64), (64, 128), (128, 32))]
results = []
for run in (torch.compile(model), model):
    with gemmdb.inductor.force(CONFIG, "test"):
        out = run(*given)
        results.append([out, *torch.autograd.grad(out.float().square().sum(), given)])
print(json.dumps({"apart": apart(*results), "calls": ctypes.c_int.in_dll(standing, "calls").value}))
"""
)
PACKAGE = (
    BEGIN
    + """
with torch.no_grad(), gemmdb.inductor.force(CONFIG):
    exported = torch.export.export(Products().eval(), INPUTS)
    made = torch._inductor.aoti_compile_and_package(exported, package_path=sys.argv[5])
torch.save((INPUTS, Products()(*INPUTS)), sys.argv[6])
taken = [product["config"] == CONFIG.text for product in gemmdb.inductor.stats()["products"]]
print(json.dumps(sorted(taken)))
"""
)
UNPACKED = """
import ctypes, torch
standing = ctypes.CDLL(sys.argv[1]) if sys.argv[1] else None
inputs, wanted = torch.load(sys.argv[3])
found = torch._inductor.aoti_load_package(sys.argv[2])(*inputs)
assert not any(name.split(".")[0] == "gemmdb" for name in sys.modules)
print(json.dumps({
    "apart": [float((one.double() - other.double()).abs().max()) for one, other in zip(found, wanted)],
    "calls": ctypes.c_int.in_dll(standing, "calls").value if standing else 0,
}))
"""


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cublaslt.built(tmp_path_factory.mktemp("cublaslt"))


def ran(kit: Any, program: str, *arguments: object, **environment: str) -> Any:
    return kit.forked(textwrap.dedent(program), environment, list(map(str, arguments)))


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, str]:
    return {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}


def test_a_cached_graph_calls_the_library_where_it_can(kit, standing, cache):
    """The second process has the library that the graph was compiled for, and the others another one, or none."""
    ways = (standing, 64, 0), (standing, 64, 0), (standing, 64, 1), (standing, 65, 0), ("", 64, 0)
    found = [ran(kit, PRODUCTS, path, "python", workspace, refuses, **cache) for path, workspace, refuses in ways]
    for one in found:
        assert one["taken"] == [True] * 7
        assert one["errors"] == []
        assert max(one["apart"]) < 0.01
    assert [one["cached"] for one in found] == [0, 1, 1, 1, 1]
    assert [one["calls"] for one in found] == [14, 14, 0, 0, 0]
    assert found[0]["warned"] == found[1]["warned"] == []
    for one, reason in zip(found[2:], ("AlgoCheck: cublasStatus 15", "needs 65 bytes", "is loaded"), strict=True):
        (warning,) = one["warned"]
        assert reason in warning


@pytest.mark.parametrize("way", ["python", pytest.param("cpp", marks=pytest.mark.slow)])
def test_activations(kit, standing, cache, way):
    """The second GEMM has none, and one that is asked for another than its own runs ATen. A second process, whose
    library refuses, generates the code anew and finds its C++ compiled."""
    for refuses in (0, 1):
        found = ran(kit, ACTIVATIONS, standing, way, 64, refuses, **cache)
        for name, one in found["results"].items():
            assert max(one["apart"]) < 0.02, name
            assert one["errors"] == []
            other = name == "tokens relu"
            assert one["taken"] == [not other, False], (name, one["notes"])
            assert one["calls"] == (0 if other or refuses else 1)
        if way == "python":  # C++ code warns through torch.
            assert bool(found["warned"]) == bool(refuses)


def test_the_gemms_of_a_backward_pass(kit, standing, cache):
    found = ran(kit, TRAINING, standing, "python", 64, 0, **cache)
    assert max(found["apart"]) < 0.02
    assert found["calls"] == 6


@pytest.mark.slow
def test_the_code_in_cpp_calls_the_library_where_it_can(kit, standing, cache):
    ways = (standing, 64, 0), (standing, 64, 1), (standing, 65, 0), ("", 64, 0)
    found = [ran(kit, PRODUCTS, path, "cpp", workspace, refuses, **cache) for path, workspace, refuses in ways]
    for one in found:
        assert one["taken"] == [True] * 7
        assert max(one["apart"]) < 0.01
    assert [one["calls"] for one in found] == [14, 0, 0, 0]


@pytest.mark.slow
def test_a_package_needs_no_gemmdb(kit, standing, cache, tmp_path):
    package, tensors = tmp_path / "model.pt2", tmp_path / "tensors.pt"
    assert ran(kit, PACKAGE, standing, "aot", 64, 0, package, tensors, **cache) == [True] * 7
    for path, calls in ((standing, 7), ("", 0)):
        found = kit.run(UNPACKED, {"PYTHONPATH": ""}, [str(path), str(package), str(tensors)])
        assert found["calls"] == calls
        assert max(found["apart"]) < 0.3
