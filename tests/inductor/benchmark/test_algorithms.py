"""GEMMs that would run ATen are timed with cuBLASLt's algorithms. There is no GPU here: times are invented."""

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from kit import cublaslt as calls
from kit.cublaslt import instead
from kit.devices import H200
from kit.gpu import algorithm, make
from kit.horizontal import decided, traced
from kit.sessions import FakeSession

from gemmdb import Config, Policy
from gemmdb.hit import Hit
from gemmdb.inductor.benchmark import algorithm_jobs as jobs
from gemmdb.inductor.benchmark import algorithm_trial as trials
from gemmdb.inductor.benchmark import algorithms, limits
from gemmdb.inductor.benchmark.algorithm_trial import CLOSE, FINALISTS, Race, finalists
from gemmdb.inductor.benchmark.limits import BUDGET, allowed_s
from gemmdb.inductor.benchmark.trial import GPU, Untimed
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.inductor.observe.journal import JOURNAL
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem, Query
from gemmdb.key.toolchain import Toolchain
from gemmdb.lookup import lowering
from gemmdb.lookup.acceptance.extern import unfused
from gemmdb.rejected import Rejected
from gemmdb.settings import Settings
from gemmdb.table.measurement import EMITTED, Status
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

FIRST = jobs.ANY
SECOND = Config.of("cublaslt", "matmul", **{**FIRST.values, "tile": 18})
SPLIT = Config.of("cublaslt", "matmul", **{**SECOND.values, "split_k": 4, "reduction": 2})
TILE = make("tile", block_m=64, block_n=128)
HERE = Toolchain(torch="2.11.0+cu130", cuda="13.0")
POLICY = Policy(on_miss="aten", confirm=True, confirm_s=3.0, live_calls=100_000)


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """An H200 without shipped tables, whose cuBLASLt can be lowered, and a process that has timed nothing yet."""
    monkeypatch.setattr("gemmdb.table.catalog.shipped_tables", lambda: tmp_path / "none")
    for module in ("benchmark.algorithm_jobs", "benchmark.payoff", "entry.table_session"):
        monkeypatch.setattr(f"gemmdb.inductor.{module}.installed", lambda kind: HERE)
    monkeypatch.setattr(algorithms, "_KNOWN", {})
    monkeypatch.setattr(algorithms, "_device_rejection", lambda device: None)
    JOURNAL.clear()
    BUDGET.clear()


@pytest.fixture
def clock(monkeypatch):
    """Invented times in microseconds, by config. Returns the operands of all trials."""

    def race(operands, proposed, allowed):
        race.seen.append(operands)
        timed = {config: [us] * 9 for config, us in race.us.items() if config != ATEN and allowed(config)}
        return Race([race.us[ATEN]] * 9, timed, race.wrong)

    race.us, race.wrong, race.seen = {ATEN: 100.0, FIRST: 80.0, SECOND: 90.0}, (), []
    monkeypatch.setattr(trials, "race", race)
    return race


def graph_of(function, m=768, n=512, k=1024, dtype=torch.bfloat16):
    x, w, b = torch.empty(m, k, dtype=dtype), torch.empty(n, k, dtype=dtype), torch.empty(n, dtype=dtype)
    return traced(function, x, w, b)


def plain(x, w, b):
    return x @ w.t()


def fused(x, w, b):
    return torch.relu(x @ w.t())


def biased(x, w, b):
    return torch.addmm(b, x, w.t())


def session(policy=POLICY, **rest):
    return FakeSession(policy=policy, user_table=Settings.read().user_table, **rest)


def searched(pairs):
    search = algorithms.Search()
    search.run(pairs)
    found = search.decide([decision for _, decision in pairs])
    assert JOURNAL.errors == []
    return found


def stored():
    path = Settings.read().user_table
    if not path.exists():
        return []
    with Table.open(path) as table:
        return list(table.measurements())


def served(decision):
    return decision.event.rung, decision.config, decision.event.config == decision.config.text


def test_the_faster_is_served(clock):
    (decision,) = searched(decided(graph_of(plain), session(), us=100.0))
    assert served(decision) == ("near", FIRST, True)
    event = decision.event
    assert (event.expected_us, event.speedup, event.note) == (80.0, 1.25, "")
    timed = {"config": FIRST.text, "us": 80.0, "aten_us": 100.0, "protocol": GPU.text}
    assert event.evidence["confirmed"] == timed


@pytest.mark.parametrize(
    ("times", "least", "config"),
    [
        ({FIRST: 99.5}, 0.0, ATEN),  # A tie.
        ({FIRST: 97.0}, 0.02, FIRST),
        ({FIRST: 97.0}, 0.05, ATEN),
        ({FIRST: 110.0}, 0.0, ATEN),
        ({SPLIT: 79.5, SECOND: 80.0}, 0.02, SECOND),  # Of two that tie, the one that sums in one order.
        ({SPLIT: 70.0, SECOND: 80.0}, 0.02, SPLIT),
    ],
)
def test_an_algorithm_must_gain_what_the_policy_requires(clock, times, least, config):
    clock.us = {ATEN: 100.0, **times}
    (decision,) = searched(decided(graph_of(plain), session(replace(POLICY, min_gain=least)), us=100.0))
    assert decision.config == config


def test_layers_share_a_trial_whatever_follows_them(clock):
    pairs = [*decided(graph_of(plain), session(), 100.0), *decided(graph_of(fused), session(), 103.0)]
    one, two = searched(pairs)
    assert len(clock.seen) == 1
    assert clock.seen[0].problem == unfused(two.problem) == one.problem
    assert one.config == two.config == FIRST
    # It saves 20 us with the relu behind it, too.
    assert two.event.expected_us == pytest.approx(83.0)
    assert two.event.speedup == pytest.approx(103 / 83)
    assert {(row.problem, row.config, row.detail, row.protocol) for row in stored()} == {
        (one.problem, config, EMITTED, GPU) for config in (ATEN, FIRST, SECOND)
    }
    assert [served(two) for two in searched(decided(graph_of(fused), session(), 103.0))] == [("near", FIRST, True)]
    assert len(clock.seen) == 1  # The process remembers it.


def test_the_next_process_is_served_without_a_trial(clock, tmp_path):
    policy = POLICY.resolved(Settings.read())
    searched(decided(graph_of(fused), session(), 103.0))
    new = TableSession(policy, settings=Settings.read())
    for function, rung in ((plain, "exact"), (fused, "epilogue")):
        ((_, decision),) = decided(graph_of(function))
        hit = new.find(decision.query)
        assert (hit.rung, hit.config, hit.speedup) == (rung, FIRST, pytest.approx(1.25))
        served = replace(decision, session=new, config=hit.config, event=decision.event.answered(hit))
        assert "a measured kernel" in str(jobs.rejection(served))


def test_the_next_process_does_not_search_where_none_was_faster(clock):
    clock.us = {ATEN: 100.0, FIRST: 120.0}
    searched(decided(graph_of(fused), session(), 103.0))
    algorithms._KNOWN.clear()
    with Table.open(Settings.read().user_table) as table:
        again = searched(decided(graph_of(fused), session(tables=(table,)), 103.0))
    assert (len(clock.seen), again[0].config) == (1, ATEN)


def test_a_build_that_timed_algorithms_settles_a_gemm(clock, lab):
    ((_, known),) = decided(graph_of(fused))
    tables = lab.catalog(lab.rows(known.problem, {FIRST: 1.1}, device=H200, clock="graph")).tables
    assert searched(decided(graph_of(fused), session(tables=tables), 103.0))[0].config == ATEN
    assert clock.seen == []


def test_what_was_measured_with_the_epilogue_counts_more_than_a_trial_without(clock, lab):
    ((_, known),) = decided(graph_of(fused))
    tables = lab.catalog(lab.rows(known.problem, {FIRST: 1.02}, device=H200, clock="graph")).tables
    assert searched(decided(graph_of(fused), session(), 103.0))[0].config == FIRST
    assert searched(decided(graph_of(fused), session(tables=tables), 103.0))[0].config == ATEN


def test_what_an_earlier_process_found_is_compared_with_a_kernel_of_ours(clock):
    searched(decided(graph_of(plain), session(), 100.0))
    algorithms._KNOWN.clear()
    with Table.open(Settings.read().user_table) as table:
        ((node, guess),) = decided(graph_of(fused), session(tables=(table,)), 103.0)
        guess = replace(guess, config=TILE, event=replace(guess.event, config=TILE.text, speedup=2.0))
        search = algorithms.Search()
        search.run([(node, guess)])
        # The kernel turned out to be slower than ATen.
        (decision,) = search.decide([replace(guess, config=ATEN, event=guess.event.refused("slower"))])
    assert (len(clock.seen), served(decision)) == (1, ("near", FIRST, True))
    assert decision.event.expected_us == pytest.approx(206 - 20)


@pytest.mark.parametrize(("us", "config"), [(90.0, FIRST), (70.0, TILE)])
def test_a_confirmed_kernel_of_ours_is_served_if_it_saves_more(clock, us, config):
    ((node, guess),) = decided(graph_of(fused), session(), 103.0)
    guess = replace(guess, config=TILE, event=replace(guess.event, config=TILE.text, expected_us=80.0, speedup=1.3))
    search = algorithms.Search()
    search.run([(node, guess)])
    event = replace(guess.event, expected_us=us, speedup=103 / us, evidence={"confirmed": {}})
    (decision,) = search.decide([replace(guess, event=event)])
    assert decision.config == config


@pytest.mark.parametrize(("us", "config"), [(70.0, SECOND), (99.5, ATEN)])
def test_an_expected_algorithm_is_one_of_the_candidates(clock, us, config):
    ((node, guess),) = decided(graph_of(plain), session(), 100.0)
    guess = replace(guess, config=SECOND, event=replace(guess.event, config=SECOND.text, expected_us=60.0))
    clock.us = {ATEN: 100.0, SECOND: us}
    ((_, decision),) = algorithms.Search().settle([(node, guess)])
    assert decision.config == config
    assert decision.event.note == ("" if config == SECOND else "no algorithm of cuBLASLt beats ATen here")


def test_a_miss_that_an_algorithm_answers_counts_as_tuned(clock):
    ((node, missed),) = decided(graph_of(plain), session(), None)
    missed = replace(missed, event=replace(missed.event, rung="aten", speedup=None, note="no rows"), refused=True)
    (decision,) = searched([(node, missed)] * 30)[:1]
    assert served(decision) == ("live", FIRST, True)
    assert (decision.unanswered, decision.refused, decision.event.note) == (False, False, "")
    clock.us = {ATEN: 100.0}


def test_a_miss_stays_one_where_no_algorithm_is_faster(clock):
    clock.us = {ATEN: 100.0, FIRST: 100.0}
    ((node, missed),) = decided(graph_of(plain), session(), 100.0)
    missed = replace(missed, event=replace(missed.event, rung="aten", note="no rows"))
    assert searched([(node, missed)]) == [missed]


def test_a_wrong_result_is_never_served(clock):
    clock.us, clock.wrong = {ATEN: 100.0}, (FIRST,)
    (decision,) = searched(decided(graph_of(plain), session(), 100.0))
    assert decision.config == ATEN
    assert {(row.config, row.status) for row in stored()} == {(FIRST, Status.WRONG)}


def test_rows_do_not_hide_a_faster_kernel_that_another_table_knows(clock, lab):
    ((_, known),) = decided(graph_of(plain))
    for ratio, kept in ((0.7, set()), (0.9, {ATEN, FIRST, SECOND})):
        algorithms._KNOWN.clear()
        tables = lab.catalog(lab.rows(known.problem, {TILE: ratio}, device=H200, clock="graph")).tables
        (decision,) = searched(decided(graph_of(fused), session(tables=tables), 103.0))
        assert decision.config == FIRST
        assert {row.config for row in stored()} == kept


def test_times_that_vary_too_much_decide_nothing(clock, monkeypatch):
    noisy = Race([100.0] * 9, {FIRST: [float(us) for us in range(10, 100, 10)]})
    monkeypatch.setattr(trials, "race", lambda *args: noisy)
    assert searched(decided(graph_of(plain), session(), 100.0))[0].config == ATEN
    assert stored() == []


@pytest.mark.parametrize("error", [Untimed("no memory"), RuntimeError("cuBLAS\nfailed")])
def test_a_failure_leaves_aten(clock, monkeypatch, error):
    def raising(*args):
        raise error

    monkeypatch.setattr(trials, "race", raising)
    search, pairs = algorithms.Search(), decided(graph_of(plain), session(), 100.0)
    search.run(pairs)
    assert search.decide([decision for _, decision in pairs]) == [decision for _, decision in pairs]
    assert len(JOURNAL.errors) == isinstance(error, RuntimeError)


ASKED = Query(Problem.gemm("mm", m=768, n=512, k=1024), H200)


def decision_for(problem=ASKED.problem, rung="near", config=ATEN, policy=POLICY, **rest):
    ((_, one),) = decided(graph_of(plain))
    event = replace(one.event, rung=rung, config=config.text)
    return replace(one, session=session(policy), query=Query(problem, H200), config=config, event=event, **rest)


@pytest.mark.parametrize(
    ("decision", "reason"),
    [
        (decision_for(), ""),
        (decision_for(rung="exact"), ""),
        (decision_for(rung="live"), ""),
        (decision_for(rung="aten"), ""),
        (decision_for(config=TILE), ""),
        (decision_for(config=TILE, rung="exact"), "a measured kernel"),
        (decision_for(rung="forced"), "forced"),
        (decision_for(policy=replace(POLICY, confirm=False)), "switched off"),
        (decision_for(Problem.gemm("mm", m=4, n=512, k=1024)), ""),
        (decision_for(Problem.gemm("mm", m=4, n=512, k=1024), rung="exact"), "settle"),
        (decision_for(Problem.gemm("bmm", batch=8, m=64, n=512, k=1024)), ""),
        (decision_for(Problem.gemm("int_mm", m=64, n=512, k=1024)), ""),
        (decision_for(Problem.gemm("int_mm", m=64, n=512, k=1024, fusion="scale")), "scale"),
        (decision_for(Problem.gemm("mm", m=64, n=512, k=1021)), "multiples of 16 bytes"),
        (decision_for(Problem.gemm("mm", m=64, n=512, k=1024, dtype="fp32")), "bf16, fp16"),
        (decision_for(Problem.gemm("scaled_mm", m=64, n=512, k=1024)), "does not solve"),
        (replace(decision_for(), config=None), "decides"),
    ],
)
def test_which_gemms_are_searched(decision, reason):
    found = jobs.rejection(decision)
    assert reason in str(found) if reason else found is None


def test_nothing_is_searched_that_inductor_searches(monkeypatch):
    monkeypatch.setattr(jobs.state, "autotuning", lambda: True)
    assert "autotunes" in str(jobs.rejection(decision_for(rung="aten")))
    assert jobs.rejection(decision_for()) is None


def test_nor_in_a_job_of_several_ranks(monkeypatch):
    monkeypatch.setattr(jobs.rules.state, "is_distributed", lambda: True)
    assert "ranks" in str(jobs.rejection(decision_for()))


def test_nor_before_the_lowering_can_carry_it_out(monkeypatch):
    monkeypatch.setattr(lowering, "_ALWAYS_LOWERED", set())
    assert "cannot be lowered" in str(jobs.rejection(decision_for()))


def test_a_weight_that_the_program_computes_is_not_cold():
    ((node, decision),) = decided(graph_of(lambda x, w, b: x @ (w * 2).t()), session())
    assert "computed the weight" in str(jobs.rejection(decision, node))


def test_the_operands_are_those_of_the_program():
    ((node, decision),) = decided(graph_of(biased), session())
    found = jobs.operands_of(node, decision)
    assert [tuple(fake.shape) for fake in found.fakes] == [(768, 1024), (1024, 512), (512,)]
    assert found.warm == (True, False, False)
    shape = found.shape
    assert (shape.a.by_rows, shape.a.leading, shape.b.by_rows, shape.b.leading) == (True, 1024, False, 1024)
    assert (shape.bias, shape.m, shape.n, shape.k) == ("bf16", 768, 512, 1024)


def test_a_bias_that_starts_anywhere_is_not_read():
    """The library might fault: a check of an algorithm does not see addresses."""
    x, w, b = (torch.empty(*sizes, dtype=torch.bfloat16) for sizes in ((768, 1024), (511, 1024), (600,)))
    for start, aligned in ((1, False), (4, False), (8, True)):
        ((node, decision),) = decided(traced(biased, x, w, b[start : start + 511]), session())
        with contextlib.nullcontext() if aligned else pytest.raises(Untimed, match="its bias"):
            jobs.operands_of(node, decision)


def test_a_single_row_has_the_stride_of_its_elements():
    x, w = torch.empty_strided((1, 64), (9999, 1)), torch.empty(64, 96)
    found = trials.Operands(Problem.gemm("mm", m=1, n=96, k=64, dtype="fp32", layout="nn"), (x, w), (True, False))
    assert (found.shape.a.leading, found.shape.b.leading) == (64, 96)


def test_the_heads_of_an_attention_are_in_the_cache():
    q, k = torch.empty(8, 64, 128, dtype=torch.bfloat16), torch.empty(8, 512, 128, dtype=torch.bfloat16)
    ((node, decision),) = decided(traced(lambda q, k: (q + 1) @ (k + 1).transpose(1, 2), q, k), session())
    found = jobs.operands_of(node, decision)
    assert found.warm == (True, True)
    assert (found.shape.batch, found.shape.a.batch_stride, found.shape.b.batch_stride) == (8, 64 * 128, 512 * 128)


def test_padded_rows_are_other_operands():
    def key(rows):
        w = torch.empty(512, rows, dtype=torch.bfloat16)[:, :1024]
        ((node, decision),) = decided(traced(lambda x, w: x @ w.t(), torch.empty(768, 1024, dtype=torch.bfloat16), w))
        return jobs.operands_of(node, decision).key

    assert len({key(1032), key(1040), key(1040)}) == 2


def test_the_longest_gemms_come_first_and_short_ones_do_not_repay(clock):
    short, long = decided(graph_of(plain, k=512), session(), 4.9), decided(graph_of(plain), session(), 5.1)
    searched([*short, *long])
    assert [one.problem.k for one in clock.seen] == [1024]
    searched([*short, *short])  # Two layers.
    assert [one.problem.k for one in clock.seen] == [1024, 512]
    assert limits.search_repays(5.1, POLICY)
    assert not limits.search_repays(4.9, POLICY)
    assert limits.search_repays(1.0, replace(POLICY, confirm_s=300.0))


def test_once_the_time_is_over_the_rest_runs_aten(clock, monkeypatch):
    now = iter(range(0, 100_000, 1))
    monkeypatch.setattr(limits, "now", lambda: float(next(now)))
    pairs = [pair for k in (512, 1024, 2048) for pair in decided(graph_of(plain, k=k), session(), 100.0)]
    found = [decision.config for decision in searched(pairs)]
    assert sorted(found, key=str) == sorted([FIRST, ATEN, ATEN], key=str)


def test_nothing_is_timed_while_a_graph_is_captured(clock, monkeypatch):
    monkeypatch.setattr(algorithms, "_device_rejection", lambda device: Rejected("a CUDA graph is being captured"))
    assert searched(decided(graph_of(plain), session(), 100.0))[0].config == ATEN
    assert clock.seen == []


def test_a_spent_budget_times_nothing(clock):
    BUDGET.spend(allowed_s(POLICY))
    assert searched(decided(graph_of(plain), session(), 100.0))[0].config == ATEN
    assert clock.seen == []


def test_a_policy_that_denies_the_config_is_obeyed(clock):
    denying = replace(POLICY, deny="tile=0")
    (decision,) = searched(decided(graph_of(plain), session(denying), 100.0))
    assert decision.config == SECOND
    (other,) = searched(decided(graph_of(plain), session(replace(POLICY, deny="tile=18")), 100.0))
    assert other.config == ATEN  # The process remembers only the fastest.


@pytest.mark.parametrize(
    ("estimates", "expected"),
    [
        ({FIRST: 9.0, SECOND: 8.0, SPLIT: 8.5}, [SECOND, SPLIT, FIRST]),
        ({FIRST: 9.0, SECOND: 10 * CLOSE + 1}, [FIRST]),
        ({FIRST: 30.0, SECOND: 20.0}, [SECOND]),
        ({Config.of("cublaslt", "matmul", **{**FIRST.values, "tile": tile}): 9.0 + tile for tile in range(1)}, None),
    ],
)
def test_the_best_few_are_timed_against_aten(estimates, expected):
    found = finalists({ATEN: 10.0, **estimates})
    assert found == expected if expected else len(found) == min(FINALISTS, len(estimates))


class Library:
    """What a trial uses of cuBLASLt, and the algorithms' estimates. `wrong` computes another product."""

    suggestions, around, wrong = (FIRST, SECOND), (SPLIT,), None

    def __init__(self, operands, copies, output):
        self.copies, self.output = copies, output

    def suggested(self):
        return list(self.suggestions)

    def near(self, estimates):
        return list(self.around)

    def loaded(self, configs, most):
        return {config: (lambda index, config=config: self.call(config)) for config in list(configs)[:most]}

    def call(self, config):
        a, b = self.copies[0][:2]
        self.output.copy_((a @ b) * (2 if config == self.wrong else 1))


@pytest.fixture
def raced(monkeypatch):
    """A trial on this CPU, with invented estimates. Returns its result."""
    estimates = {ATEN: 10.0, FIRST: 9.0, SECOND: 8.0, SPLIT: 7.0}
    monkeypatch.setattr(trials, "_Algorithms", Library)
    monkeypatch.setattr(trials.library, "loaded", lambda: True)
    monkeypatch.setattr(trials.trial, "preparation", lambda *args: None)
    monkeypatch.setattr(trials, "_estimates", lambda calls, prepare: {one: estimates[one] for one in calls})
    monkeypatch.setattr(
        trials, "in_turn", lambda prepare, calls, *rest: [[float(place)] for place, _ in enumerate(calls)]
    )
    x, w = torch.empty(32, 64, dtype=torch.bfloat16), torch.empty(64, 96, dtype=torch.bfloat16)
    given = trials.Operands(Problem.gemm("mm", m=32, n=96, k=64, layout="nn"), (x, w), (True, False))
    return lambda proposed=(), allowed=lambda config: True: trials._race(given, proposed, allowed)


def test_the_best_candidates_and_those_near_them_are_timed(raced):
    found = raced()
    assert found.aten == [0.0]
    assert found.finalists == {SPLIT: [1.0], SECOND: [2.0], FIRST: [3.0]}
    assert list(raced(allowed=lambda config: config != SPLIT).finalists) == [SECOND, FIRST]


def test_an_algorithm_with_another_result_is_not_timed(raced, monkeypatch):
    monkeypatch.setattr(Library, "wrong", SPLIT)
    found = raced()
    assert (list(found.finalists), found.wrong) == ([SECOND, FIRST], [SPLIT])
    monkeypatch.setattr(Library, "suggestions", ())
    with pytest.raises(Untimed, match="no algorithm"):
        raced()
    found = raced([SPLIT])
    assert (found.aten, found.finalists, found.wrong) == ((), {}, [SPLIT])


def algorithms_of(monkeypatch, library, bias=False):
    """The algorithms of a library that multiplies nothing, for operands on this CPU, and the copies of these."""
    instead(monkeypatch, library)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    x, w, b = torch.empty(32, 64).bfloat16(), torch.empty(64, 96).bfloat16(), torch.empty(96).bfloat16()
    problem = Problem.gemm("addmm" if bias else "mm", m=32, n=96, k=64, layout="nn")
    given = trials.Operands(problem, (x, w, b) if bias else (x, w), (True, False, False)[: 3 if bias else 2])
    copies = [given.fakes, [one.clone() for one in given.fakes]]
    return trials._Algorithms(given, copies, given.output()), copies


def test_each_candidate_is_called_once_before_it_is_timed(monkeypatch):
    library = calls.Library()
    found, copies = algorithms_of(monkeypatch, library)
    loaded = found.loaded([FIRST, FIRST, SECOND, SPLIT], 2)
    assert (list(loaded), len(library.calls)) == ([FIRST, SECOND], 2)
    loaded[SECOND](1)
    left, right = library.calls[-1][3], library.calls[-1][5]
    assert (left, right) == (copies[1][1].data_ptr(), copies[1][0].data_ptr())
    assert library.calls[-1][-2:] == (trials.MAX_WORKSPACE, 7)


def test_a_bias_is_the_same_memory_in_every_call(monkeypatch):
    library = calls.Library()
    found, copies = algorithms_of(monkeypatch, library, bias=True)
    found.loaded([FIRST], 1)[FIRST](1)
    assert set(library.biases.values()) >= {copies[0][2].data_ptr()}


@pytest.mark.parametrize(
    "library",
    [
        calls.Library(cublasLtMatmulAlgoCheck=calls.STATUS_NOT_SUPPORTED),
        calls.Library(cublasLtMatmul=calls.STATUS_NOT_SUPPORTED),
        calls.Library(workspace=trials.MAX_WORKSPACE + 1),
    ],
)
def test_what_the_library_does_not_support_is_no_candidate(monkeypatch, library):
    found, _ = algorithms_of(monkeypatch, library)
    assert found.loaded([FIRST, SECOND], 9) == {}


def test_loading_kernels_ends_in_time(monkeypatch):
    found, _ = algorithms_of(monkeypatch, calls.Library())
    now = iter([0.0, 0.0, 1.0, 1.0])
    monkeypatch.setattr(limits, "now", lambda: next(now))
    assert list(found.loaded([FIRST, SECOND], 9)) == [FIRST]


def test_a_heuristic_that_fails_suggests_nothing(monkeypatch):
    found, _ = algorithms_of(monkeypatch, calls.Library(cublasLtMatmulAlgoGetHeuristic=calls.STATUS_NOT_SUPPORTED))
    assert found.suggested() == []


def test_algorithms_near_the_best_two_are_candidates(monkeypatch):
    found, _ = algorithms_of(monkeypatch, calls.Library())
    other = algorithm(custom=0)
    near = found.near({ATEN: 1.0, FIRST: 9.0, algorithm(): 2.0, other: 3.0})
    assert {one.values["algo"] for one in near} == {other.values["algo"]}
    assert len(near) == len(set(near)) > 10


def test_an_unfused_answer_of_another_gpu_is_in_doubt():
    hit = Hit("sku", SECOND, 80.0, 1.25, "another", {})
    decision = decision_for(rung="sku", config=hit.config)
    assert jobs.is_guess(decision)
    assert not jobs.is_guess(decision_for(config=TILE))


def test_a_table_without_algorithms_is_no_answer(clock):
    ((_, decision),) = decided(graph_of(plain))
    path = Settings.read().user_table
    with Store.open(path) as store:
        store.refresh()
    with Table.open(path) as table:
        assert searched(decided(graph_of(plain), session(tables=(table,)), 100.0))[0].config == FIRST
    assert decision.problem == clock.seen[0].problem
