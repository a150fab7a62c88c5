"""Warm caches across processes: hits with the same tables, misses after a change, and the journal right on both."""

import pytest
import torch
from kit.inductor import CPP, INT8PACK

from gemmdb import Problem
from gemmdb.devices import detect
from gemmdb.inductor.lower.adapter import slots
from gemmdb.kernels.config import ATEN
from gemmdb.workload import entries

# A graph without pointwise code, so that a process compiles no C++.
PROGRAM = """
import torch, gemmdb.inductor
from gemmdb import Config
from torch._dynamo.utils import counters
choice = os.environ.get("CHOICE")
if choice == "record":
    keep = gemmdb.inductor.record(os.environ["WORKLOAD"])
elif choice:
    block = gemmdb.inductor.force(lambda p: Config.of("aten", "default"), key=choice)
    block.__enter__()
else:
    gemmdb.inductor.enable()
w1, w2 = (torch.ones(*s, requires_grad=True) for s in ((16, 8), (8, 4)))
run = torch.compile(lambda x, w1, w2: x @ w1 @ w2)
for _ in range(3):
    run(torch.ones(2, 16), w1, w2).sum().backward()
stats = gemmdb.inductor.stats()
if choice == "record":
    keep.stop()
counted = lambda kind, name: [counters[kind].get(f"{name}_cache_{found}", 0) for found in ("hit", "miss")]
print(json.dumps({
    "fx": counted("inductor", "fxgraph"), "aot": counted("aot_autograd", "autograd"),
    "problems": sorted((p["problem"], p["rung"], p["config"], p["count"]) for p in stats["products"]),
    "errors": stats["errors"], "uncovered": stats["uncovered"],
}))
"""


@pytest.fixture
def cache(tmp_path):
    return {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}


def test_fx_graph_and_autograd_caches_hit_with_the_same_identity_and_miss_with_another(kit, cache):
    cold, warm, other = (kit.forked(PROGRAM, {**cache, "CHOICE": choice}) for choice in "AAB")
    assert (cold["aot"], warm["aot"], other["aot"]) == ([0, 1], [1, 0], [0, 1])
    assert (cold["fx"], warm["fx"], other["fx"]) == ([0, 2], [2, 0], [0, 2])
    assert len(cold["problems"]) == 5
    assert warm["problems"] == cold["problems"] == other["problems"]
    assert warm["errors"] == []
    disabled = kit.forked(PROGRAM, {**cache, "CHOICE": "A", "GEMMDB_DISABLE": "1"})
    assert (disabled["aot"], disabled["problems"]) == ([0, 1], [])


WEIGHTS = """
import torch, torch._inductor.config, gemmdb.inductor
from gemmdb import Config
from torch._dynamo.utils import counters

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randint(-100, 100, (64, 128), dtype=torch.int8))

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight.to(x.dtype))

errors, x = [], torch.randn(8, 128).bfloat16()
with torch.no_grad(), torch._inductor.config.patch(freezing=True), gemmdb.inductor.force(CONFIG):
    for _ in range(2):
        torch._dynamo.reset()
        model = Model().eval()
        wanted = x.double() @ model.weight.double().t()
        errors.append(float((torch.compile(model)(x).double() - wanted).abs().max() / wanted.abs().max()))
hits = counters["inductor"].get("fxgraph_cache_hit", 0)
print(json.dumps([errors, [p["config"] for p in gemmdb.inductor.stats()["products"]], hits]))
"""


@pytest.mark.parametrize(("config", "hits"), [(ATEN, 1), (CPP, 0), (INT8PACK, 0)], ids=["aten", "cpp", "int8pack"])
def test_a_frozen_model_is_not_served_the_weights_of_another_one(kit, cache, config, hits):
    errors, configs, found = kit.forked(WEIGHTS.replace("CONFIG", f"Config.parse({config.text!r})"), cache)
    assert (set(configs), found) == ({config.text}, hits)
    assert max(errors) < 0.02


SEARCHED = """
import torch, torch._inductor.config, gemmdb.inductor
from kit.sessions import FakeSession
from gemmdb import Policy
from gemmdb.inductor.entry import active
from gemmdb.settings import Settings

class Sliced(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randn(96, 128)[32:])

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight)

policy = Policy(on_miss="live")
gemmdb.inductor.enable(policy=policy)
session = FakeSession(policy=policy.resolved(Settings.read()), identity="tables")
settings = {"freezing": True, "max_autotune_gemm_backends": "ATEN"}
torch.manual_seed(int(os.environ["SEED"]))
errors, x = [], torch.randn(8, 128)
with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False), torch._inductor.config.patch(settings):
    with active.use(session):
        for _ in range(2):
            torch._dynamo.reset()
            model = Sliced().eval()
            errors.append(float((torch.compile(model)(x) - model(x)).abs().max()))
print(json.dumps([errors, [p["rung"] for p in gemmdb.inductor.stats()["products"]]]))
"""


def test_nor_where_inductor_searches(kit, cache):
    """It packs the weight, or reads a copy of it. Without oneDNN, whose tensors are not stored, both would be."""
    for seed in "12":
        errors, rungs = kit.forked(SEARCHED, {**cache, "SEED": seed})
        assert set(rungs) == {"live"}
        assert max(errors) < 1e-3


def test_a_provisional_graph_is_in_no_cache(kit, cache):
    program = "from gemmdb.inductor.observe.journal import JOURNAL" + PROGRAM.replace(
        "lambda p: Config", 'lambda p: setattr(JOURNAL, "provisional", True) or Config'
    )
    first, second = (kit.forked(program, {**cache, "CHOICE": "A"}) for _ in range(2))
    assert [found[which][0] for found in (first, second) for which in ("aot", "fx")] == [0, 0, 0, 0]  # Hits.
    assert second["fx"][1] >= 2
    assert first["problems"] == second["problems"] != []
    assert first["errors"] == second["errors"] == []


ENGINE = """
import torch, gemmdb.inductor
from gemmdb import Config
from gemmdb.inductor.observe.journal import JOURNAL
from torch._inductor import CompiledArtifact, standalone_compile

x, w, graphs = torch.ones(2, 16), torch.ones(16, 8), []

def passing(graph, inputs):
    graphs.append((graph, inputs))
    return graph

def chosen(problem):
    JOURNAL.provisional = True
    return Config.of("aten", "default")

path = os.environ["SAVED"]
with torch.no_grad():
    torch.compile(lambda x, w: x @ w, backend=passing)(x, w)
    ((graph, inputs),) = graphs
    if os.path.exists(path):
        run = CompiledArtifact.load(path=path, format="unpacked")
    else:
        with gemmdb.inductor.force(chosen, key="A"):
            run = standalone_compile(graph, inputs, dynamic_shapes="from_graph")
        run.save(path=path, format="unpacked")
    print(json.dumps(run(*inputs)[0].tolist()))
"""


def test_an_engine_can_load_a_provisional_graph_that_it_saved(kit, tmp_path):
    """It saves each graph right after the compile, and starts from these."""
    saved = {"SAVED": str(tmp_path / "saved")}
    first, second = (kit.forked(ENGINE, {**saved, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / name)}) for name in "ab")
    assert first == second == [[16.0] * 8] * 2


def test_the_fx_graph_cache_alone(kit, cache):
    program = "import torch._functorch.config as aot\naot.enable_autograd_cache = False\n" + PROGRAM
    cold, warm = (kit.forked(program, {**cache, "CHOICE": "A"}) for _ in range(2))
    assert (cold["aot"], warm["aot"]) == ([0, 0], [0, 0])
    assert (cold["fx"], warm["fx"]) == ([0, 2], [2, 0])
    assert warm["problems"] == cold["problems"] != []


def test_record_on_warm_caches(kit, cache, tmp_path):
    lines = []
    for name in ("cold", "warm"):
        path = tmp_path / f"{name}.jsonl"
        kit.forked(PROGRAM, {**cache, "CHOICE": "record", "WORKLOAD": str(path)})
        lines.append(set(entries.read(path).entries))
    assert lines[0] == lines[1]
    assert {(entry.calls, entry.count, entry.problem.op) for entry in lines[0]} == {(3, 1, "mm")}
    assert all(entry.device.startswith("device ") for entry in lines[0])


def test_a_table_change_misses_and_the_same_table_hits(kit, cache, table):
    first = Problem.gemm("mm", m=2, n=8, k=16, dtype="fp32", layout="nn").text
    path = table({first: kit.ATEN})
    settings = {**cache, "GEMMDB_TABLES": str(path)}
    cold, warm = kit.forked(PROGRAM, settings), kit.forked(PROGRAM, settings)
    assert (cold["aot"], warm["aot"]) == ([0, 1], [1, 0])
    assert [first, "exact", "aten:default", 1] in cold["problems"]
    assert warm["problems"] == cold["problems"]
    table({first.replace("n=8", "n=9"): kit.ATEN})
    assert kit.forked(PROGRAM, settings)["aot"] == [0, 1]


PRECISION = """
import torch, gemmdb.inductor
from torch._dynamo.utils import counters
torch.set_float32_matmul_precision(os.environ["PRECISION"])
gemmdb.inductor.enable()
with torch.no_grad():
    torch.compile(lambda x, w: x @ w)(torch.ones(4, 16), torch.ones(16, 8))
(product,) = gemmdb.inductor.stats()["products"]
hits = [counters["inductor"].get("fxgraph_cache_hit", 0), counters["aot_autograd"].get("autograd_cache_hit", 0)]
print(json.dumps([product["problem"].split("fp32=")[1].split()[0], sum(hits)]))
"""


def test_another_fp32_mode_misses_both_caches(kit, cache):
    high = "tf32" if torch.cpu._is_amx_fp16_supported() else "ieee"  # Other CPUs multiply in full all the same.
    assert kit.forked(PRECISION, {**cache, "PRECISION": "high"}) == [high, 0]
    assert kit.forked(PRECISION, {**cache, "PRECISION": "medium"}) == ["bf16", 0]
    assert kit.forked(PRECISION, {**cache, "PRECISION": "medium"})[1] > 0


SETTINGS = {
    "float32_matmul_precision": lambda: torch.set_float32_matmul_precision("medium"),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "fp16_accumulation": lambda: setattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", True),
    "bf16_reduction": lambda: setattr(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
    "mixed_old_and_new": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
}


@pytest.fixture
def restored():
    """torch's settings as they were, after the test."""
    matmul, threads = torch.backends.cuda.matmul, torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    matmul.allow_fp16_accumulation, matmul.allow_bf16_reduced_precision_reduction = False, True
    matmul.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_lookups_depend_on_are_part_of_the_key(name, restored):
    before = slots.surroundings()
    SETTINGS[name]()
    assert slots.surroundings() != before


def test_the_cpu_is_part_of_the_key():
    assert detect.cpu(torch.get_num_threads()).text in slots.surroundings()
