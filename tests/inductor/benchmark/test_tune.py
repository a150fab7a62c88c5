"""`on_miss="live"`: a missed GEMM is measured by the generator or by Inductor's search, and answers from then on."""

import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
import torch
import torch._inductor.config as inductor_config
from kit.devices import H200
from kit.sessions import FakeSession, missed, stored
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import gemmdb.inductor
from gemmdb.devices import detect, registry
from gemmdb.hit import Hit
from gemmdb.inductor.benchmark import client, limits, rules
from gemmdb.inductor.benchmark import inductor_search as searching
from gemmdb.inductor.benchmark import tune as tuning
from gemmdb.inductor.benchmark.limits import BUDGET, PROCESS_S
from gemmdb.inductor.entry import install
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import installed
from gemmdb.lookup.ranking import LIVE_CANDIDATES
from gemmdb.rejected import Rejected
from gemmdb.settings import LIVE_S, Policy, Settings
from gemmdb.table import writer
from gemmdb.table.measurement import Protocol
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Verdict

SMALL = Problem.gemm("mm", m=3, n=64, k=64, dtype="fp32")
LARGE = Query(Problem.gemm("mm", m=7, n=5000, k=3000, dtype="bf16", layout="nt"), H200)


@pytest.fixture(autouse=True)
def anew(monkeypatch):
    """A process that has not tried yet."""
    monkeypatch.setattr(tuning, "_late", None)
    yield
    JOURNAL.drop()


@pytest.fixture
def compile_live(kit):
    """A function that compiles a linear layer as a new process would, and returns gemmdb's stats."""
    model, x = nn.Linear(64, 40).eval(), torch.randn(8, 64)

    def run(on_miss="live"):
        gemmdb.inductor.reset_stats()
        gemmdb.inductor.enable(on_miss=on_miss)
        with torch.no_grad(), inductor_config.patch(freezing=True, autotune_local_cache=False):
            kit.close(kit.compiled(model, x), model(x))
        return gemmdb.inductor.stats()

    yield run
    client.close()


@pytest.mark.slow
def test_a_gemm_is_measured_once_and_nothing_else_is_benchmarked(compile_live):
    state = torch.get_rng_state()
    first = compile_live()
    assert torch.equal(torch.get_rng_state(), state)
    assert (first["rungs"], first["benchmarked"], first["errors"]) == ({"live": 1}, 0, [])
    (product,) = first["products"]
    assert product["config"] == product["evidence"]["ties"][0]
    rows = stored()
    assert 2 <= len({row.config for row in rows}) <= 1 + LIVE_CANDIDATES
    assert all(row.protocol.l2 == "cold" and row.times.samples >= 5 for row in rows if row.times)
    with Table.open(Settings.read().user_table) as table:
        assert table.generation == 0  # Compiled graphs stay valid.
    second = compile_live("aten")
    assert (second["rungs"], second["benchmarked"]) == ({"exact": 1}, 0)
    assert second["products"][0]["evidence"]["pick"] == product["config"]


def test_by_default_a_cpu_is_not_kept_waiting(compile_live):
    stats = compile_live(None)
    (product,) = stats["products"]
    assert (stats["rungs"], stats["benchmarked"], stats["errors"]) == ({"aten": 1}, 0, [])
    assert product["config"] == ATEN.text
    assert product["note"].startswith(
        f"not tuned: on a CPU that takes about {limits.CPU_FIRST_S:g} s for the first GEMM"
        f" and {limits.CPU_FURTHER_S:g} s for each other, but only {LIVE_S:g} s are allowed"
    )
    assert not Settings.read().user_table.exists()


def test_where_tuning_came_to_nothing_the_session_answers_as_without_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "_late", Rejected("20 s were not enough for live tuning before"))
    (decided,) = tuning.tune(missed(tmp_path / "user.db", detect.cpu(), SMALL))
    assert (decided.event.rung, decided.config) == ("aten", ATEN)
    assert decided.event.note == "not tuned: 20 s were not enough for live tuning before"
    tuning.forget_lateness()
    assert tuning.device_rejection(detect.cpu()) is None


@pytest.mark.parametrize(
    ("tuned", "note", "goes_on", "provisional"),
    [
        (client.Tuned(late=True, waited=True), "3 s were not enough", True, True),
        (client.Tuned(late=True, starting=True), "3 s were not enough", True, False),
        (client.Tuned(late=True), "3 s were not enough", False, False),
        (client.Tuned(declined={SMALL: "it is too large"}), "it is too large", True, False),
    ],
    ids=["others measured", "was starting", "late", "declined"],
)
def test_without_a_verdict_it_is_served_as_without_tuning(
    tmp_path, monkeypatch, caplog, tuned, note, goes_on, provisional
):
    """The next graph is tuned unless time ran out for nothing, and no cache keeps a graph that another may improve."""
    JOURNAL.drop()
    monkeypatch.setattr(client, "tune", lambda requests, limit_s: replace(tuned, spent={"start": 1.25, "measure": 0.5}))
    caplog.set_level("INFO", "gemmdb")
    (decided,) = tuning.tune(missed(tmp_path / "user.db", detect.cpu(), SMALL))
    assert (decided.config, decided.event.note) == (ATEN, f"not tuned: {note}")
    assert (tuning.device_rejection(detect.cpu()) is None) == goes_on
    assert JOURNAL.provisional == provisional
    said, ended = (record.message for record in caplog.records)
    assert said.startswith("live tuning: the compile waits 3 s at most, while 1 problem is measured.")
    assert said.endswith("the measuring process to start.")
    assert ended.startswith("live tuning ended after ")
    assert ended.endswith(" s: 1.2 s waiting for the process, 0.5 s measuring")


def test_one_late_gemm_does_not_stop_a_process_that_has_tuned_others(tmp_path, monkeypatch):
    """A large layer that takes too long says nothing about the next; the budget of the process limits the waiting."""
    monkeypatch.setattr(tuning, "_late", None)
    monkeypatch.setattr(client, "ready", lambda: True)
    monkeypatch.setattr(client, "tune", lambda requests, limit_s: client.Tuned(late=True))
    (decided,) = tuning.tune(missed(tmp_path / "user.db", detect.cpu(), SMALL))
    assert (decided.config, decided.event.note) == (ATEN, "not tuned: 1 s were not enough")
    assert tuning.device_rejection(detect.cpu()) is None


def test_the_gpu_that_is_looked_at_is_the_one_that_the_gemm_is_for(monkeypatch, tmp_path):
    """With stand-ins for two GPUs of different kinds."""
    first, second = registry.find("sm80"), registry.find("sm90")
    free = {0: 64 << 30, 1: 5 << 30}
    monkeypatch.setattr(tuning.detect, "cuda", lambda number: (first, second)[number])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (free[number], 80 << 30))
    assert [tuning._gpu(device) for device in (first, second)] == [0, 1]
    assert tuning.device_rejection(second) is None
    group = missed(tmp_path / "user.db", second, *(Problem.gemm("mm", m=16, n=n, k=8192) for n in (1024, 57344)))
    room, rest = tuning._with_room(second, group)
    assert room == group[:1]
    assert rest[0].event.note.startswith("not tuned: only 5120 MiB are free on the GPU, measuring it takes ")
    free[1] = 3 << 30
    assert str(tuning.device_rejection(second)) == "only 3072 MiB are free on the GPU"
    assert tuning.device_rejection(first) is None


def test_a_large_weight_needs_more_memory_free_than_a_small_one():
    small, large = (Problem.gemm("mm", m=16, n=n, k=8192) for n in (1024, 57344))
    assert tuning.bytes_needed(small) < tuning.FREE_BYTES
    assert tuning.bytes_needed(large) > 16 * 57344 * 8192
    experts = Problem.gemm("grouped_mm", m=8, n=4096, k=7168, groups=256)
    assert tuning.bytes_needed(experts) > 6 * 256 * 4096 * 7168


def test_what_was_not_done_in_time_is_served_as_without_tuning(tmp_path, monkeypatch):
    """With a stand-in for the generator, which cannot be made to be late at a given moment."""
    device, protocol = detect.cpu(), Protocol("host", "cold", 1, 10)
    other = SMALL.resized(5, 64, 64)
    found = {SMALL: Verdict(SMALL, device, protocol, installed("cpu"), (ATEN,), 1.0, 0.01, 10.0, 1)}
    JOURNAL.drop()
    monkeypatch.setattr(client, "tune", lambda requests, limit_s: client.Tuned(found, None, late=True))
    decided = tuning.tune(missed(tmp_path / "user.db", device, SMALL, other, live_s=2.0))
    assert JOURNAL.provisional
    assert tuning.device_rejection(device) is None
    assert [(decision.config, decision.event.rung) for decision in decided] == [(ATEN, "live"), (ATEN, "aten")]
    assert decided[1].event.note == "not tuned: 2 s were not enough"


@pytest.mark.slow
def test_of_two_processes_that_share_a_table_one_measures(tmp_path):
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from gemmdb import Problem
        from gemmdb.devices import detect
        from gemmdb.inductor.benchmark import client as live
        device = detect.native()
        live.start(device)
        problems = [Problem.gemm("mm", m=m, n=16, k=32, dtype="fp32") for m in (4, 5)]
        tuned = live.tune([live.Request(problem, device, Path(sys.argv[1])) for problem in problems])
        # What measures loads torch; what only has it measured would keep it waiting for that long.
        loaded = live._TUNER.process().call(60, eval, "'torch' in __import__('sys').modules").value
        print(*(tuned.verdicts[problem].pick.text for problem in problems), tuned.late, loaded)
    """)
    table = tmp_path / "shared.db"
    command = [sys.executable, "-c", program, str(table)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=300)[0].split() for process in both]
    assert answers == [[ATEN.text, ATEN.text, "False", "False"]] * 2
    with Table.open(table) as opened:
        runs = {}
        for row in opened.measurements():
            runs.setdefault(row.problem, set()).add(row.run)
    assert [len(found) for found in runs.values()] == [1, 1]


@pytest.mark.slow
def test_inductor_searches_where_the_generator_is_not_installed(compile_live, monkeypatch):
    """Its timings are hot: a later compile takes them for cold ones only instead of another search."""
    monkeypatch.setattr(rules, "missing_library", lambda: "jinja2")
    first, second, third = compile_live(), compile_live(), compile_live("aten")
    assert (first["rungs"], first["benchmarked"]) == ({"live": 1}, 1)
    assert (second["rungs"], second["benchmarked"]) == ({"exact": 1}, 0)
    assert third["rungs"] == {"aten": 1}
    (product,) = second["products"]
    assert "l2=hot" in product["evidence"]["protocol"]
    assert product["evidence"]["instead_of"] == "cold"
    assert {row.config.name for row in stored()} == {"aten:default", "cpp:packed_gemm"}


def test_a_time_of_inductors_search_is_stored_with_an_interval(tmp_path):
    (decision,) = missed(tmp_path / "user.db", detect.cpu(), SMALL)
    choices = [type(name, (), {})() for name in ("ExternKernelCaller", "CppTemplateCaller", "TritonTemplateCaller")]
    aten, ours = searching.measurements(decision, dict(zip(choices, (0.02, 0.01, 0.005), strict=True)))
    assert (aten.config, aten.times.median_us, ours.config.name) == (ATEN, 20.0, "cpp:packed_gemm")
    assert (ours.times.median_us, ours.times.aten_us, ours.times.spread) == (10.0, 20.0, pytest.approx(0.05))
    assert searching.measurements(decision, {choices[1]: 0.01}) == [], "there is no ATen to compare with"


def test_hits_are_looked_up_once_for_both_passes_and_all_layers():
    asked = []
    looking = FakeSession(
        lambda query: asked.append(query) or Hit("exact", ATEN, 1.0, 1.0, ""), Policy(on_miss="live"), "key"
    )
    x, w = torch.randn(8, 16), torch.randn(16, 16)
    traced = make_fx(lambda x, w: torch.mm(torch.mm(torch.mm(x, w), w), w))(x, w)
    for one in install.slots(looking).values():
        one(traced.graph)
    assert len(asked) == 1
    assert len(JOURNAL.pending()) == 3


def test_a_process_that_has_spent_its_time_tunes_nothing_more(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "tune", lambda requests, limit_s: pytest.fail("it was tuned"))
    BUDGET.spend(PROCESS_S)
    (decided,) = tuning.tune(missed(tmp_path / "user.db", detect.cpu(), SMALL))
    assert (decided.config, decided.event.note) == (ATEN, "not tuned: 8 s compile budget exhausted")
    assert not JOURNAL.provisional


def test_what_was_measured_answers_the_next_graph_of_the_process(kit, tmp_path, monkeypatch):
    monkeypatch.setenv("GEMMDB_USER_TABLE", str(tmp_path / "user.db"))
    problem = Problem.gemm("mm", m=8, n=48, k=64, dtype="fp32", constant_weight=True)
    rows = kit.rows(problem, {kit.CPP: 50.0})
    looking = TableSession(Policy(on_miss="live", live_s=300.0))
    assert looking.find(Query(problem, rows[0].device)) is None
    writer.record_live(tmp_path / "user.db", rows)
    hit = looking.find(Query(problem, rows[0].device))
    assert (hit.rung, hit.config) == ("exact", kit.CPP)
    assert TableSession(looking.policy).identity == looking.identity


def test_a_doubtful_answer_that_will_be_timed_is_no_miss():
    """The logits of a ModernBERT: the cost model has a guess, and tuning found nothing in three seconds."""
    wide = replace(LARGE, problem=Problem.gemm("addmm", m=2048, n=50368, k=768, layout="nt", bias="1d"))
    quick = Policy(on_miss="live", live_s=10.0)
    assert TableSession(quick).find(wide) is None
    confirmed = TableSession(replace(quick, confirm=True)).find(wide)
    assert confirmed is not None
    assert confirmed.rung in ("near", "model")
    asked_by_name = TableSession(replace(quick, confirm=True, live_s=300.0))
    assert asked_by_name.find(wide) is None, "who asks for live tuning by name gets it"
