"""One node that several kernels compute, by the number of rows: run on a CPU, with a library in cuBLASLt's place."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit import cublaslt

PROGRAM = """
import ctypes, logging, torch
from torch._inductor import config, graph, utils
from torch._inductor.utils import run_and_get_code
import gemmdb.inductor
from gemmdb import Config, Policy
from gemmdb.hit import Hit
from gemmdb.inductor.entry import active, enable
from gemmdb.inductor.lower.adapter import cublaslt
from gemmdb.inductor.match import extract
from gemmdb.kernels.config import ATEN
from kit.cublaslt import opened
from kit.devices import H200
from kit.gpu import algorithm
from kit.sessions import FakeSession

config.fx_graph_cache = torch._functorch.config.enable_autograd_cache = False  # What C++ there is, is found compiled.
path, way, workspace = sys.argv[1:4]
standing = opened(path)
extract.device = lambda of: H200
graph.should_assume_input_aligned = utils.tensor_is_aligned
cublaslt.workspace = lambda *asked: int(workspace)
ctypes.c_int.in_dll(standing, "workspace").value = int(workspace)
calls = ctypes.c_int.in_dll(standing, "calls")
enable.install()
torch.manual_seed(0)
ONE, TWO = algorithm(), algorithm(tile=601)
PARTS = (8, ONE), (16, ATEN), (32, TWO), (64, ONE), (128, ATEN), (None, TWO)
CALLED = {2: 1, 8: 1, 9: 0, 16: 0, 32: 1, 33: 1, 64: 1, 65: 0, 128: 0, 129: 1, 300: 1}

def find(query):
    return Hit("exact", ONE, 1.0, 2.0, "", {}, PARTS) if "m" in query.ranges else None

def rand(*sizes):
    return torch.randn(sizes).bfloat16()

w, b, f = rand(48, 64), rand(48), torch.randn(48, 64).to(torch.float8_e4m3fn)
one, other = torch.rand(()), torch.rand(())
j = torch.randint(-9, 9, (64, 48), dtype=torch.int8)
linear = torch.nn.functional.linear
MODELS = {
    "mm": lambda x: torch.relu(x @ w.t()) + 1,
    "addmm": lambda x: torch.nn.functional.gelu(linear(x, w, b)),
    "residual": lambda x: torch.addmm(torch.relu(x[:, :48]), x, w.t()),
    "alone": lambda x: x @ w.t(),
    "tokens": lambda x: linear(x.view(2, -1, 64), w, b) * 2,
    "twice": lambda x: (x @ w.t(), torch.relu(linear(x, w, b))),
    "int_mm": lambda x: torch._int_mm(x.to(torch.int8), j) + 1,
    "scaled_mm": lambda x: torch._scaled_mm(
        x.to(torch.float8_e4m3fn), f.t(), one, other, b, out_dtype=torch.bfloat16
    ),
}

def flat(found):
    return found if isinstance(found, tuple) else (found,)

results = {}
for name in sys.argv[4].split(","):
    model = MODELS[name]
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    with torch.no_grad(), active.use(FakeSession(find, Policy(), None)), config.patch(cpp_wrapper=way == "cpp"):
        run, ran, worst, code = torch.compile(model), {}, 0.0, None
        for m in (32, *CALLED):
            if name == "tokens" and (m % 2 or m == 2):  # One token is a size of its own.
                continue
            x = rand(m, 64)
            before = calls.value
            if code is None:
                torch._dynamo.mark_dynamic(x, 0)
                found, code = run_and_get_code(run, x)
            else:
                found = run(x)
            ran[m] = calls.value - before
            for ours, wanted in zip(flat(found), flat(model(x)), strict=True):
                worst = max(worst, float((ours.double() - wanted.double()).abs().max() / wanted.double().abs().max()))
    stats = gemmdb.inductor.stats()
    results[name] = {
        "ran": ran, "worst": worst, "errors": stats["errors"], "notes": [one["note"] for one in stats["products"]],
        "compiles": len(code), "compares": code[0].count("<= 8"), "code": code[0] if "-v" in sys.argv else "",
    }
print(json.dumps({"results": results, "called": CALLED}))
"""
CONFIRMING = (
    PROGRAM.partition("def find(query)")[0]
    + """
from dataclasses import replace
from gemmdb.inductor.benchmark import limits, rules, trial as trials
from gemmdb.inductor.benchmark.trial import Trial
from gemmdb.key.toolchain import Toolchain
import gemmdb.inductor.benchmark.confirm as confirming
from kit.sessions import stored
from gemmdb.settings import Settings

slower = [int(one) for one in sys.argv[4].split(",") if one]
seen, real = [], trials.run
confirming.installed = lambda kind: Toolchain(torch="2.11.0+cu130", cuda="13.0")

def timed(functions, fakes, *rest):
    found = real(functions, fakes, *rest)
    assert not found.differs
    m = fakes[0].shape[0]
    seen.append(m)
    return Trial([100.0] * 9, [150.0 if m in slower else 50.0] * 9, found.protocol, False)

trials.run = timed
rules.device_rejection = lambda device: None
limits.CPU_TRIAL_S = 0.0
unmeasured = [
    {"m": m, "config": config.text, "us": 50.0, "speedup": 2.0} for m, config in ((8, ONE), (32, TWO), (64, ONE))
]
hit = Hit("near", ONE, 50.0, 2.0, "", {"unmeasured": unmeasured}, PARTS)
certain = Hit("near", ATEN, 100.0, 1.0, "", {}, ((16, ATEN), (None, TWO)))
session = FakeSession(
    lambda query: hit if "m" in query.ranges else None,
    Policy(confirm=True, confirm_s=300.0, on_miss="aten", horizontal=False), None, Settings.read().user_table,
    certain=lambda query: certain if "m" in query.ranges else None,
)
w = torch.randn(48, 64).bfloat16()
model = lambda x, r: torch.relu(x @ w.t()) * r
x, r = torch.randn(24, 64).bfloat16(), torch.randn(24, 48).bfloat16()
for one in (x, r):
    torch._dynamo.mark_dynamic(one, 0)
with torch.no_grad(), active.use(session):
    run = torch.compile(model)
    run(x, r)
    worst, ran = 0.0, {}
    for m in CALLED:
        x, r = torch.randn(m, 64).bfloat16(), torch.randn(m, 48).bfloat16()
        before = calls.value
        found, wanted = run(x, r).double(), model(x, r).double()
        ran[m] = calls.value - before
        worst = max(worst, float((found - wanted).abs().max() / wanted.abs().max()))
stats = gemmdb.inductor.stats()
(product,) = stats["products"]
print(json.dumps({
    "seen": seen, "ran": ran, "worst": worst, "errors": stats["errors"], "note": product["note"],
    "confirmed": product["evidence"].get("confirmed_at"), "rows": [one.problem.text for one in stored()],
}))
"""
)
"""A program that confirms the parts of a range."""
PACKAGE = (
    PROGRAM.partition("results = {}")[0]
    + """
class Net(torch.nn.Module):
    def forward(self, x):
        return MODELS["mm"](x), MODELS["addmm"](x), MODELS["residual"](x)

rows = torch.export.Dim("rows", min=2, max=1024)
with torch.no_grad(), active.use(FakeSession(find, Policy(), None)):
    exported = torch.export.export(Net().eval(), (rand(32, 64),), dynamic_shapes={"x": {0: rows}})
    torch._inductor.aoti_compile_and_package(exported, package_path=sys.argv[4])
inputs = [rand(m, 64) for m in CALLED]
torch.save((inputs, [Net()(x) for x in inputs]), sys.argv[5])
print(json.dumps([one["note"] for one in gemmdb.inductor.stats()["products"]]))
"""
)
UNPACKED = """
import ctypes, torch
calls = ctypes.c_int.in_dll(ctypes.CDLL(sys.argv[1]), "calls")
inputs, wanted = torch.load(sys.argv[3])
run, ran, worst = torch._inductor.aoti_load_package(sys.argv[2]), {}, 0.0
for x, values in zip(inputs, wanted, strict=True):
    before = calls.value
    for one, other in zip(run(x), values, strict=True):
        worst = max(worst, float((one.double() - other.double()).abs().max() / other.double().abs().max()))
    ran[x.shape[0]] = calls.value - before
assert not any(name.split(".")[0] == "gemmdb" for name in sys.modules)
print(json.dumps({"ran": ran, "worst": worst}))
"""
OPS = "mm,addmm,residual,alone,tokens,twice,int_mm,scaled_mm"


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cublaslt.built(tmp_path_factory.mktemp("cublaslt"))


def ran(kit: Any, standing: Path, *arguments: object) -> Any:
    return kit.forked(textwrap.dedent(PROGRAM), arguments=[str(standing), *map(str, arguments)])


@pytest.mark.parametrize(
    ("way", "workspace"), [("python", 0), ("python", 64), pytest.param("cpp", 64, marks=pytest.mark.slow)]
)
def test_six_calls_share_a_range(kit: Any, standing: Path, way: str, workspace: int) -> None:
    """Whichever number of rows comes, the kernel of its part computes it, and no other size compiles anything."""
    found = ran(kit, standing, way, workspace, OPS)
    for name, one in found["results"].items():
        count = 2 if name == "twice" else 1
        assert one["errors"] == [], name
        assert one["notes"] == [""] * count, name
        assert one["worst"] < 0.02, name
        assert one["compiles"] == 1
        assert one["ran"] == {m: count * found["called"][m] for m in one["ran"]}, name
        assert one["compares"] >= count, name


CALLED = {2: 1, 8: 1, 9: 0, 16: 0, 32: 1, 33: 1, 64: 1, 65: 0, 128: 0, 129: 1, 300: 1}


@pytest.mark.parametrize("slower", ["", "64", "8,32,64"])
def test_each_part_is_confirmed_at_the_sizes_that_decide(kit: Any, standing: Path, tmp_path: Path, slower: str) -> None:
    """What is slower than ATen at one of them is replaced by what needs no confirming."""
    environment = {"XDG_DATA_HOME": str(tmp_path)}
    found = kit.forked(textwrap.dedent(CONFIRMING), environment, [str(standing), "python", "0", slower])
    assert found["errors"] == []
    assert sorted(found["seen"]) == [8, 32, 64]
    assert found["worst"] < 0.02
    assert len(found["rows"]) == 6
    # The certain answer is ATen up to 16 rows, and the other config beyond.
    lost = {2, 8} if slower == "8,32,64" else set()
    assert {int(m): count for m, count in found["ran"].items()} == {m: c * (m not in lost) for m, c in CALLED.items()}
    assert found["note"].startswith("not confirmed: cublaslt:matmul at m=") is bool(slower)
    assert [why == "confirmed" for why in found["confirmed"].values()] == [str(m) not in slower for m in (8, 32, 64)]


@pytest.mark.slow
def test_a_package_of_aotinductor_chooses_without_gemmdb(kit: Any, standing: Path, tmp_path: Path) -> None:
    package, tensors = tmp_path / "model.pt2", tmp_path / "tensors.pt"
    given = [str(one) for one in (standing, "aot", 0, package, tensors)]
    assert kit.forked(textwrap.dedent(PACKAGE), arguments=given) == ["", "", ""]
    found = kit.run(UNPACKED, {"PYTHONPATH": ""}, [str(one) for one in (standing, package, tensors)])
    assert found["worst"] < 0.02
    assert {int(m): count for m, count in found["ran"].items()} == {m: 3 * count for m, count in CALLED.items()}
