"""An answer that no measurement of the problem stands behind is timed beside ATen, and the faster is served."""

import re
from dataclasses import replace

import pytest
import torch
import torch._inductor.config as inductor_config
from kit.devices import H200
from kit.sessions import FakeSession, stored
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.utils import run_and_get_code

import gemmdb.inductor
from gemmdb import Config, Policy, Problem
from gemmdb.hit import Hit
from gemmdb.inductor.benchmark import confirm as confirming
from gemmdb.inductor.benchmark import limits, rules
from gemmdb.inductor.benchmark import trial as trials
from gemmdb.inductor.benchmark.limits import BUDGET, allowed_s
from gemmdb.inductor.benchmark.trial import Trial
from gemmdb.inductor.entry import active
from gemmdb.inductor.match import extract
from gemmdb.key.toolchain import Toolchain
from gemmdb.rejected import Rejected
from gemmdb.settings import Settings
from gemmdb.table.measurement import EMITTED, Status
from gemmdb.table.writer import Store

pytestmark = pytest.mark.slow
GEMV = Config.of("triton", "gemv", block_n=4, block_k=64, unroll=1, dequant="cast", warps=4, stages=1)
PATIENT = Policy(on_miss="aten", confirm=True, confirm_s=300.0)


class Gated(nn.Module):
    """Two linears with the same epilogue, which reads another tensor, and one without an epilogue."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 96), nn.Linear(64, 96)
        self.last = nn.Linear(96, 32)

    def forward(self, x, gate):
        return self.last(self.first(x).relu() * gate), self.second(x).relu() * gate


TEXTS = []
"""The problems of a Gated, from the first test that compiles one."""


@pytest.fixture
def model():
    return Gated().eval(), (torch.randn(8, 64), torch.randn(8, 96))


@pytest.fixture
def clock(monkeypatch):
    """The code runs and is compared as it is, but each call takes as long as it is said to here: the machine that runs
    the tests is busy with other things. Returns the list of trials."""
    seen, real = [], trials.run
    monkeypatch.setattr(limits, "CPU_TRIAL_S", 0.0)

    def trial(functions, fakes, *rest):
        found = real(functions, fakes, *rest)
        assert found.differs == trial.differs
        seen.append([tuple(fake.shape) for fake in fakes])
        return Trial([trial.aten_us] * 9, [trial.us] * 9, found.protocol, found.differs)

    trial.aten_us, trial.us, trial.differs, trial.seen = 100.0, 50.0, False, seen
    monkeypatch.setattr(trials, "run", trial)
    return trial


@pytest.fixture
def compiled(kit, model, tmp_path):
    """A function that compiles the model as a new process would, against a table that holds, for each GEMM but the
    exact problem, a neighbour where the C++ template takes half of ATen's time. Returns gemmdb's stats."""
    module, inputs = model

    def run(policy=PATIENT, code=None, **patches):
        torch._dynamo.reset()
        gemmdb.inductor.reset_stats()
        gemmdb.inductor.enable(tables=[tmp_path / "near.db"], policy=policy)
        with torch.no_grad(), inductor_config.patch(freezing=True, **patches):
            found, codes = run_and_get_code(torch.compile(module), *inputs)
            for one, wanted in zip(found, module(*inputs), strict=True):
                kit.close(one, wanted)
        (code if code is not None else []).extend(codes)
        return gemmdb.inductor.stats()

    if not TEXTS:
        with Store.open(tmp_path / "near.db") as store:
            store.refresh()
        TEXTS.extend(dict.fromkeys(kit.problems(run(replace(PATIENT, confirm=False)))))
    with Store.open(tmp_path / "near.db") as store:
        for problem in map(Problem.parse, TEXTS):
            store.add(kit.rows(problem.resized(9, problem.n, problem.k), {kit.CPP: 50.0}))
        store.refresh()
    return run


def test_the_faster_is_served_and_the_next_compile_finds_it_measured(kit, compiled, clock):
    stats = compiled()
    assert (stats["rungs"], stats["errors"]) == ({"near": 3}, [])
    assert set(kit.lowered(stats)) == {kit.CPP}
    for product in stats["products"]:
        assert (product["expected_us"], product["speedup_vs_aten"], product["note"]) == (50.0, 2.0, "")
        assert product["evidence"]["confirmed"]["aten_us"] == 100.0
    # Both linears with the same epilogue are one trial; the gate is an input of it.
    assert len(clock.seen) == 2
    rows = stored()
    assert {row.problem.text for row in rows} == set(kit.problems(stats))
    assert {(row.config, row.detail, row.protocol) for row in rows} == {
        (kit.ATEN, EMITTED, trials.CPU),
        (kit.CPP, EMITTED, trials.CPU),
    }
    again = compiled()
    assert (again["rungs"], len(clock.seen)) == ({"exact": 3}, 2)
    assert set(kit.lowered(again)) == {kit.CPP}


def test_an_answer_that_is_slower_than_aten_ends_as_aten(kit, compiled, clock):
    clock.us = 300.0
    stats = compiled()
    assert set(kit.lowered(stats)) == {kit.ATEN}
    for product in stats["products"]:
        assert (product["expected_us"], product["speedup_vs_aten"]) == (100.0, 1.0)
        assert product["note"] == "cpp:packed_gemm takes 300.0 us here, ATen 100.0"
    again = compiled()
    assert (again["rungs"], len(clock.seen)) == ({"exact": 3}, 2)
    assert set(kit.lowered(again)) == {kit.ATEN}


def test_a_gain_below_the_policys_is_none(kit, compiled, clock):
    clock.us = 80.0
    assert set(kit.lowered(compiled(replace(PATIENT, min_gain=0.3)))) == {kit.ATEN}


def test_without_confirming_nothing_is_timed(compiled, clock, monkeypatch):
    monkeypatch.setenv("GEMMDB_CONFIRM", "0")
    stats = compiled(replace(PATIENT, confirm=None))
    assert (stats["rungs"], clock.seen, stored()) == ({"near": 3}, [], [])
    assert all("confirmed" not in product["evidence"] for product in stats["products"])


def test_strict_mode_serves_what_was_measured_and_times_nothing(kit, compiled, clock):
    with pytest.raises(Exception, match="no table answers for"):
        compiled(replace(PATIENT, on_miss="error"))
    assert clock.seen == []
    compiled()
    timed = len(clock.seen)
    assert compiled(replace(PATIENT, on_miss="error"))["rungs"] == {"exact": 3}
    assert len(clock.seen) == timed


def test_nothing_is_timed_while_a_graph_is_captured(compiled, clock, monkeypatch):
    monkeypatch.setattr(rules, "device_rejection", lambda device: Rejected("a CUDA graph is being captured"))
    stats = compiled()
    assert (stats["rungs"], clock.seen) == ({"near": 3}, [])
    assert {product["note"] for product in stats["products"]} == {"not confirmed: a CUDA graph is being captured"}


def test_a_process_of_many_graphs_waits_for_few_of_them(compiled, clock):
    BUDGET.spend(allowed_s(PATIENT.resolved(Settings.read())))
    stats = compiled()
    assert (stats["rungs"], clock.seen) == ({"near": 3}, [])
    assert {product["note"] for product in stats["products"]} == {"not confirmed: 899 s compile budget exhausted"}


def raising(*args, **kwargs):
    raise RuntimeError("something broke\nbadly")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (confirming.Confirmation, "_jobs"),
        (confirming.at_rows.cutting, "cut"),
        (confirming.emission, "generate"),
        (confirming.emission.Code, "begin"),
        (trials, "run"),
    ],
)
def test_a_failure_serves_what_is_served_without_confirming(kit, compiled, monkeypatch, owner, name):
    monkeypatch.setattr(owner, name, raising)
    stats = compiled()
    assert (set(kit.lowered(stats)), stats["rungs"]) == ({kit.CPP}, {"near": 3})
    assert stats["errors"]
    assert all("RuntimeError: something broke" in error for error in stats["errors"])
    assert all(product["note"].startswith("not confirmed: ") for product in stats["products"])


def test_a_table_that_cannot_be_written_loses_the_rows_alone(kit, compiled, clock, monkeypatch, tmp_path):
    (tmp_path / "folder.db").mkdir()
    monkeypatch.setenv("GEMMDB_USER_TABLE", str(tmp_path / "folder.db"))
    stats = compiled()
    assert set(kit.lowered(stats)) == {kit.CPP}
    assert all("confirmed" in product["evidence"] for product in stats["products"])
    assert any("is a directory" in error for error in stats["errors"])


def test_times_that_vary_too_much_decide_nothing(kit, compiled, clock, monkeypatch):
    noisy = Trial([100.0] * 9, [float(us) for us in range(10, 100, 10)], trials.CPU)
    monkeypatch.setattr(trials, "run", lambda *args: noisy)
    stats = compiled()
    assert {product["note"] for product in stats["products"]} == {"not confirmed: its times vary too much"}
    assert stored() == []


def test_a_wrong_result_is_never_served(kit, compiled, clock, monkeypatch):
    monkeypatch.setattr(trials, "run", lambda *args: Trial((), (), trials.CPU, differs=True))
    stats = compiled()
    assert set(kit.lowered(stats)) == {kit.ATEN}
    assert {p["note"] for p in stats["products"]} == {"cpp:packed_gemm is wrong: its result differs from ATen's"}
    assert {(row.config, row.status) for row in stored()} == {(kit.CPP, Status.WRONG)}
    assert set(kit.lowered(compiled(replace(PATIENT, confirm=False)))) == {kit.ATEN}


def test_once_the_time_is_over_the_rest_is_served_as_without_confirming(kit, compiled, clock, monkeypatch):
    now = iter(range(0, 10_000, 100))
    monkeypatch.setattr(limits, "now", lambda: float(next(now)))
    stats = compiled()
    notes = sorted(product["note"] for product in stats["products"])
    assert notes == ["", "not confirmed: 300 s limit reached"] or notes == ["not confirmed: 300 s limit reached"] * 2


def anonymous(code):
    """Output code without the number of its graph and the addresses of its constants."""
    return [re.sub(" [0-9a-f]{9,}$", "", line) for line in code.splitlines() if "AOT ID" not in line]


def test_the_compile_in_progress_is_left_as_it_was(kit, compiled, clock):
    """The same code, counters and random states as when the table has the rows, and a compile cache that works."""
    compiled()
    measured, confirmed = [], []
    torch.manual_seed(3)
    counters.clear()
    compiled(code=measured)
    counted, state = dict(counters["inductor"]), torch.get_rng_state()
    Settings.read().user_table.unlink()
    torch.manual_seed(3)
    counters.clear()
    seen = len(clock.seen)
    compiled(code=confirmed)
    assert len(clock.seen) == seen + 2
    assert list(map(anonymous, confirmed)) == list(map(anonymous, measured))
    assert dict(counters["inductor"]) == counted
    assert torch.equal(torch.get_rng_state(), state)


def test_what_torch_takes_apart_is_timed_beside_that_and_ends_as_that(kit, monkeypatch):
    """As with `coordinate_descent_tuning` on a GPU, where torch decomposes GEMMs of one row. There is none here:
    ATen's side is compiled, and the times are invented."""
    table = select_decomp_table()
    plain = table[torch.ops.aten.mm.default]

    def apart(a, b):
        return (a.unsqueeze(2) * b.unsqueeze(0)).sum(dim=1) if a.shape[0] == 1 else plain(a, b)

    beside = []

    def begin(self, steer):
        self.begun = (self._code(kit.ATEN, steer),)
        beside.extend(code.source for code in self.begun)

    def finish(self):
        slower = Trial([100.0] * 9, [300.0] * 9, trials.GPU)
        return confirming.Result(confirming.decide(confirming.measurements(self.decision, slower)), 300.0, 100.0)

    monkeypatch.setitem(table, torch.ops.aten.mm.default, apart)
    monkeypatch.setattr(extract, "device", lambda of: H200)
    monkeypatch.setattr(confirming, "installed", lambda kind: Toolchain(torch="2.11.0", cuda="13.0"))
    monkeypatch.setattr(confirming.ConfirmJob, "begin", begin)
    monkeypatch.setattr(confirming.emission.Code, "ready", lambda self, seconds: True, raising=False)
    monkeypatch.setattr(confirming.ConfirmJob, "finish", finish)
    of = FakeSession(lambda query: Hit("near", GEMV, 50.0, 2.0, "guess"), PATIENT.resolved(Settings.read()), None)
    a, b = torch.randn(1, 64), torch.randn(32, 64).t()

    def run():
        torch._dynamo.reset()
        found, (code,) = run_and_get_code(torch.compile(lambda a, b: (a @ b).relu()), a, b)
        kit.close(found, (a @ b).relu())
        return anonymous(code)

    without = run()
    gemmdb.inductor.enable()
    with active.use(of):
        assert run() == without
    (product,) = gemmdb.inductor.stats()["products"]
    assert (product["rung"], product["config"]) == ("near", kit.ATEN.text)
    assert "triton:gemv takes 300.0 us here, ATen 100.0" in product["note"]
    assert len(beside) == 1
    assert "extern_kernels.mm" not in beside[0]
