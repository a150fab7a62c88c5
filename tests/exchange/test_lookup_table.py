"""The export for PyTorch's lookup table: the installed torch reads it and takes the same choices."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.devices import H200
from kit.kernel_inputs import kernel_inputs

from gemmdb.exchange import lookup_table
from gemmdb.exchange.content import Tally
from gemmdb.exchange.formats import export
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.table.measurement import EMITTED, Measurement, Protocol, Status, Times
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

GRAPH = Protocol("graph", "cold", 10, 15, version=4)
TILE = {"block_m": 64, "block_n": 128, "block_k": 32, "group_m": 8, "warps": 4, "stages": 3}
TEMPLATE = Config.of("triton", "inductor_mm", **TILE)
TMA = Config.of("triton", "inductor_persistent_tma", **TILE)
SCALED_TMA = Config.of("triton", "inductor_scaled_tma", **TILE)
BMM = Config.of("triton", "inductor_bmm", **TILE)


def row(problem: Problem, config: Config, us: float, device: Device = H200, **more) -> Measurement:
    times = Times(us, us * 0.99, us * 1.01, 15, 100.0)
    toolchain = Toolchain(torch="2.13.0", triton="3.6.0", cuda="13.0")
    return Measurement(
        problem, config, device, GRAPH, toolchain, "run-1", Status.OK, times, **{"detail": EMITTED, **more}
    )


@pytest.fixture
def exported(tmp_path):
    """Exports the rows: the entries as a program loads them, and the report."""

    def make(*rows: Measurement):
        with Store.open(tmp_path / "a.db") as store:
            store.add(rows)
            store.refresh()
        found = export(tmp_path / "a.db", tmp_path / "table.json", "lookup-table")
        return json.loads((tmp_path / "table.json").read_text()), found

    return make


def against_aten(problem: Problem, *configs: Config, us: float = 50.0) -> list[Measurement]:
    return [row(problem, ATEN, 100.0), *(row(problem, config, us) for config in configs)]


PROBLEMS = {
    "mm": (Problem.gemm("mm", m=16, n=4096, k=4096), TEMPLATE),
    "mm of rows": (Problem.gemm("mm", m=1, n=512, k=520, dtype="fp16", layout="nn"), TEMPLATE),
    "mm by maps": (Problem.gemm("mm", m=128, n=512, k=512), TMA),
    "mm of fp32": (Problem.gemm("mm", m=128, n=512, k=500, dtype="fp32", layout="tn"), TEMPLATE),
    "addmm": (Problem.gemm("addmm", m=16, n=4096, k=4096), TEMPLATE),
    "addmm, one row": (Problem.gemm("addmm", m=1, n=512, k=512), TEMPLATE),
    "addmm, full": (Problem.gemm("addmm", m=16, n=512, k=512, bias="full"), TEMPLATE),
    "addmm, column": (Problem.gemm("addmm", m=16, n=512, k=512, bias="column"), TEMPLATE),
    "addmm, one column": (Problem.gemm("addmm", m=16, n=1, k=512, bias="column"), TEMPLATE),
    "addmm, one number": (Problem.gemm("addmm", m=16, n=1, k=512), TEMPLATE),
    "addmm, one row by column": (Problem.gemm("addmm", m=1, n=64, k=512, bias="column"), TEMPLATE),
    "bmm": (Problem.gemm("bmm", m=16, n=64, k=64, batch=8), BMM),
    "int_mm": (Problem.gemm("int_mm", m=32, n=512, k=512), TEMPLATE),
    "scaled_mm": (Problem.gemm("scaled_mm", m=32, n=512, k=512, scales="tensor"), TEMPLATE),
    "scaled_mm of rows": (Problem.gemm("scaled_mm", m=32, n=512, k=512, scales="row"), TEMPLATE),
    "scaled_mm with a bias": (Problem.gemm("scaled_mm", m=32, n=512, k=512, scales="row", bias="1d"), TEMPLATE),
    "scaled_mm by maps": (Problem.gemm("scaled_mm", m=128, n=512, k=512, scales="row"), SCALED_TMA),
}


@pytest.fixture
def choices(monkeypatch):
    """Torch's own reader of the table, for a machine with an H200: `choices(problem, entries)` is what it limits the
    search of a GEMM to."""
    torch = pytest.importorskip("torch")
    from torch._inductor import config
    from torch._inductor.graph import GraphLowering
    from torch._inductor.lookup_table import LookupTableChoices
    from torch._inductor.virtualized import V

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(LookupTableChoices, "_get_device_key", staticmethod(lambda device: H200.sku))
    graph = GraphLowering(torch.fx.symbolic_trace(lambda x: x))

    def find(problem: Problem, entries, templates=()):
        names = [*lookup_table.TEMPLATES.values(), *lookup_table.ATEN_NAMES.values(), "aten::addmm"]
        settings = {"lookup_table.table": entries, "max_autotune_gemm": True}
        with config.patch(settings), V.set_graph_handler(graph):
            reader, inputs = LookupTableChoices(), kernel_inputs(problem)
            if templates:
                return reader._finalize_template_configs({}, inputs, list(templates), problem.op)
            return reader.lookup_template_configs(inputs, problem.op, names)

    return find


SCALED = ["scaled_mm", "scaled_mm of rows", "scaled_mm by maps"]


@pytest.mark.parametrize("config", ["the template", "aten"])
@pytest.mark.parametrize("name", ["mm", "mm of rows", "mm of fp32", "addmm", "int_mm", "bmm", *SCALED])
def test_torch_makes_one_choice_of_an_entry(choices, monkeypatch, name, config):
    """Of all configs that its heuristics would race."""
    from torch._inductor import utils
    from torch._inductor.kernel import bmm, mm
    from torch._inductor.template_heuristics import triton as heuristics

    def record(kwargs, num_stages, num_warps):
        return SimpleNamespace(kwargs=kwargs, num_stages=num_stages, num_warps=num_warps)

    for module in (heuristics, utils):
        monkeypatch.setattr(module, "using_b200", lambda: False)
        monkeypatch.setattr(module, "get_num_sms", lambda: H200.units)
    monkeypatch.setattr(heuristics, "has_triton_stable_tma_api", lambda: True)
    monkeypatch.setattr(heuristics, "TritonConfig", record)  # A record of triton, which need not be here.
    problem, best = PROBLEMS[name]
    known = {"mm": mm.aten_mm, "int_mm": mm.aten__int_mm, "bmm": bmm.aten_bmm, "scaled_mm": mm.aten__fp8_mm}
    aten = known.get(problem.op)
    template = bmm.bmm_template if problem.op == "bmm" else mm.mm_template
    if best == SCALED_TMA:
        template = mm.scaled_mm_device_tma_epilogue_scaling_template
    pick = best if config == "the template" else ATEN
    if pick == ATEN and aten is None:
        return  # PyTorch's table cannot say it, and nothing is exported.
    wanted = lookup_table.entry(pick, problem, H200)
    entries = {one: [dict(wanted)] for one in lookup_table.keys(problem, H200)}
    (only,) = choices(problem, entries, filter(None, (aten, template)))
    assert only.template.uid == wanted.pop("template_id")
    kwargs = only.params.to_kwargs()
    assert {key: kwargs[key] for key in wanted} == wanted
    assert kwargs.keys() - wanted.keys() <= {"hint_override"}, "torch 2.11 would miss them"
    assert not kwargs.keys() & only.extra_kwargs.keys(), "torch would pass them twice"


@pytest.mark.parametrize("name", PROBLEMS)
def test_torch_finds_the_pick(exported, choices, name):
    problem, config = PROBLEMS[name]
    entries, found = exported(*against_aten(problem, config))
    assert (found.carried, found.left) == (len(lookup_table.keys(problem, H200)), ())
    ((template, (kwargs,)),) = choices(problem, entries).items()
    assert template == lookup_table.TEMPLATES[config.kernel]
    assert [kwargs[key] for key in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")] == [64, 128, 32, 8]
    assert (kwargs["num_warps"], kwargs["num_stages"], kwargs["EVEN_K"]) == (4, 3, problem.k % 32 == 0)


@pytest.mark.parametrize("op", ["mm", "bmm", "int_mm", "scaled_mm"])
def test_torch_finds_aten(exported, choices, op):
    problem, config = PROBLEMS[op]
    entries, found = exported(*against_aten(problem, config, us=200.0))
    assert (found.carried, found.left) == (len(lookup_table.keys(problem, H200)), ())
    assert choices(problem, entries) == {lookup_table.ATEN_NAMES[op]: [{}]}


def test_torch_names_its_templates_so():
    pytest.importorskip("torch")
    from torch._inductor.kernel import bmm, mm

    scaled = mm.scaled_mm_device_tma_epilogue_scaling_template
    ours = [mm.mm_template, mm.persistent_tma_mm_template, bmm.bmm_template, scaled]
    assert [template.uid for template in ours] == list(lookup_table.TEMPLATES.values())
    assert {op: getattr(module, f"aten_{name}").uid for op, module, name in (
        ("mm", mm, "mm"), ("bmm", bmm, "bmm"), ("int_mm", mm, "_int_mm"),
        ("scaled_mm", mm, "_fp8_mm"))} == lookup_table.ATEN_NAMES  # fmt: skip


@pytest.mark.parametrize("name", ["mm", "mm of rows", "addmm", "int_mm", "bmm", "scaled_mm", "scaled_mm of rows"])
def test_the_template_gets_the_constants_that_gemmdb_gives_it(name):
    pytest.importorskip("torch")
    from gemmdb.inductor.lower.inductor_templates import constants

    problem, config = PROBLEMS[name]
    ours = constants(config, problem)
    theirs = lookup_table.entry(config, problem, H200)
    # Inductor adds ALLOW_TF32 itself; an entry that has it too raises TypeError.
    assert {k: v for k, v in theirs.items() if k in ours} == {k: v for k, v in ours.items() if k != "ALLOW_TF32"}
    assert theirs.keys() - ours.keys() == {"template_id", "num_stages", "num_warps"}


def test_a_kernel_of_ours_is_replaced_by_the_best_that_inductor_has(exported):
    problem = Problem.gemm("mm", m=16, n=4096, k=4096)
    ours = Config.of("aten", "padded", multiple=16)
    slower = Config.of("triton", "inductor_mm", **{**TILE, "stages": 2})
    rows = [*against_aten(problem, ours, us=40.0), row(problem, TEMPLATE, 60.0), row(problem, slower, 70.0)]
    entries, found = exported(*rows)
    (((only,),)) = entries.values()
    assert only["num_stages"] == 3
    (left,) = found.left
    assert (left.count, "is exported instead" in left.reason, "aten:padded" in left.examples[0]) == (1, True, True)


def test_a_kernel_slower_than_aten_is_no_replacement(exported):
    problem = Problem.gemm("mm", m=16, n=4096, k=4096)
    ours = Config.of("aten", "padded", multiple=16)
    entries, _ = exported(*against_aten(problem, ours, us=40.0), row(problem, TEMPLATE, 99.5))
    assert list(entries.values()) == [[{"template_id": "aten::mm"}]]


def test_what_cannot_be_said_is_counted_by_reason(exported):
    cpu = Device("cpu", "cpu", "Test CPU", 2)
    addmm = Problem.gemm("addmm", m=16, n=512, k=512)
    mixed = Problem.gemm("mixed_mm", m=16, n=512, k=512)
    fp8 = Problem.gemm("scaled_mm", m=16, n=512, k=512, fast_accum=True)
    padded = Problem.parse(Problem.gemm("mm", m=16, n=512, k=512).text.replace("a=bf16:row:8", "a=bf16:row-padded:8"))
    mm = Problem.gemm("mm", m=16, n=512, k=512)
    relu = Problem.gemm("mm", m=16, n=512, k=512, fusion="pointwise")
    entries, found = exported(
        row(mm, ATEN, 100.0, cpu), row(addmm, ATEN, 100.0), row(mixed, ATEN, 100.0), row(fp8, ATEN, 100.0),
        row(padded, ATEN, 100.0), *against_aten(mm, TEMPLATE), *against_aten(relu, TEMPLATE, us=70.0),
    )  # fmt: skip
    assert len(entries) == found.carried == 1
    reasons = {left.reason.split(",")[0]: left.count for left in found.left}
    assert reasons == {
        "PyTorch's lookup table is for NVIDIA GPUs only": 1,
        "ATen is Inductor's best kernel": 1,
        "PyTorch's lookup table has no entries for mixed_mm": 1,
        "the key does not say whether fast accumulation is allowed": 1,
        "its operands are not dense": 1,
        "another problem with the same Inductor key is exported instead": 1,
    }


def test_the_shipped_table_is_exported_within_seconds():
    from gemmdb.settings import shipped_tables

    with Table.open(shipped_tables() / "sm90-nvidia-h200.db") as table:
        entries = lookup_table.build(table, Tally())
    assert len(entries) > 500
    assert all(len(found) == 1 and found[0]["template_id"].startswith(("triton::", "aten::"))
               for found in entries.values())  # fmt: skip


SIZES = st.integers(1, 300) | st.sampled_from([4096, 14336])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    op=st.sampled_from(["mm", "addmm", "bmm", "int_mm"]),
    sizes=st.tuples(SIZES, SIZES, SIZES),
    layout=st.sampled_from(["nn", "nt", "tn", "tt"]),
    dtype=st.sampled_from(["bf16", "fp16", "fp32"]),
    bias=st.sampled_from(["1d", "full", "column"]),
    block=st.sampled_from([16, 32, 64]),
)
def test_torch_finds_the_entry_of_any_dense_gemm(choices, op, sizes, layout, dtype, bias, block):
    m, n, k = sizes
    words = {"addmm": {"bias": bias}, "bmm": {"batch": 3}}.get(op, {})
    problem = Problem.gemm(op, m=m, n=n, k=k, dtype="int8" if op == "int_mm" else dtype, layout=layout, **words)
    kernel = "inductor_bmm" if op == "bmm" else "inductor_mm"
    config = Config.of("triton", kernel, **{**TILE, "block_k": block})
    assert lookup_table.rejection(problem, H200) is None
    wanted = lookup_table.entry(config, problem, H200)
    found = choices(problem, json.loads(json.dumps({one: [wanted] for one in lookup_table.keys(problem, H200)})))
    template = wanted.pop("template_id")
    assert found == {template: [wanted]}
    assert wanted["EVEN_K"] == (k % block == 0)
