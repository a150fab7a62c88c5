"""Products with int4 weights on the ladder: what answers for sizes near those measured, and what live tuning tries."""

import pytest
from kit.devices import H100, H200
from kit.gpu import make

from gemmdb import Config, Problem
from gemmdb.kernels.config import ATEN
from gemmdb.lookup import answer
from gemmdb.lookup.acceptance.tuning import candidates
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.saving import saving
from gemmdb.settings import Policy

OURS = make("int4", scaled="sums", split_k=4)
SKINNY = make("int4_skinny", block_n=32)
DEQUANTISED = Config.of("aten", "dequantised")


def int4(m=16, n=4096, k=4096, **rest):
    return Problem.gemm("mixed_mm", m=m, n=n, k=k, **{"weight_dtype": "int4", **rest})


@pytest.fixture
def rows(lab):
    def around(times, **rest):
        sizes = [(m, n) for m in (8, 16, 32) for n in (3584, 5120)]
        return [row for m, n in sizes for row in lab.rows(int4(m, n, **rest), times, device=H200)]

    return around


def test_what_was_measured_answers(lab, ask):
    hit = ask(int4(), lab.rows(int4(), {OURS: 0.5}, device=H200))
    assert (hit.rung, hit.config) == ("exact", OURS)


def test_near_sizes_answer(ask, rows):
    """The split of K that fills the multiprocessors is computed anew."""
    hit = ask(int4(), rows({OURS: 0.5}))
    assert hit.rung == "near"
    assert {**hit.config.values, "split_k": 4} == dict(OURS.values)
    assert hit.speedup == pytest.approx(2, rel=0.2)
    assert ask(int4(), rows({})).config == ATEN
    assert ask(int4(m=24), rows({DEQUANTISED: 0.5})).config == DEQUANTISED


def test_near_sizes_of_a_few_rows_answer(lab, ask):
    known = [row for n in (3584, 5120) for row in lab.rows(int4(8, n), {SKINNY: 0.5}, device=H200)]
    hit = ask(int4(8), known)
    assert (hit.rung, hit.config) == ("near", SKINNY)
    assert ask(int4(16), known).config == ATEN


@pytest.fixture
def confirmed(lab):
    """A lookup on an H200 as a compile makes it, which times a kernel before it serves it."""
    policy = Policy(on_miss="aten", confirm=True)
    return lambda problem, rows: answer(lab.query(problem, H200), lab.catalog(rows), policy)


@pytest.mark.parametrize("other", [{"group": 64}, {"packing": "tinygemm4"}, {"group": 64, "packing": "tinygemm4"}])
def test_smaller_groups_and_other_tiles_answer_from_farther_away_if_that_is_confirmed(ask, confirmed, rows, other):
    ours = make("int4", split_k=4, stages=4)
    hit, own = confirmed(int4(), rows({ours: 0.5}, **other)), confirmed(int4(), rows({ours: 0.5}))
    assert ask(int4(), rows({ours: 0.5}, **other)) is None
    assert (hit.rung, hit.config) == ("near", own.config)
    assert hit.config.kernel == "int4"
    assert hit.evidence["distance"] == pytest.approx(own.evidence["distance"] + 0.25 * len(other))


def test_larger_groups_do_not(confirmed, rows):
    """Kernels that sum over 128 of K are none for groups of 64, and so a win of ATen would mean little."""
    assert confirmed(int4(group=64), rows({OURS: 0.5})) is None


def test_zero_points_and_the_order_in_a_byte_answer_for_each_other(confirmed, rows):
    known = rows({OURS: 0.5}, packing="high-first", zeros="uint8")
    assert confirmed(int4(packing="low-first"), known).config.kernel == "int4"
    fp16 = rows({OURS: 0.5}, packing="low-first", zeros="fp16", dtype="fp16")
    assert confirmed(int4(packing="low-first"), fp16).config.kernel == "int4"


@pytest.mark.parametrize("packing", ["low-first", "gptq", "plain"])
def test_the_other_16_bit_dtype_answers_if_that_is_confirmed(ask, confirmed, rows, packing):
    asked = int4(packing=packing, dtype="fp16")
    hit, own = (
        confirmed(asked, rows({OURS: 0.5}, packing=packing)),
        confirmed(asked, rows({OURS: 0.5}, packing=packing, dtype="fp16")),
    )
    assert (hit.rung, hit.config) == ("near", own.config)
    assert hit.evidence["distance"] == pytest.approx(own.evidence["distance"] + 0.25)
    assert ask(asked, rows({OURS: 0.5}, packing=packing)) is None


def test_signed_and_unsigned_bytes_answer_for_each_other(confirmed, rows):
    ours = make("groupwise", warps=4, stages=4)
    signed = {"weight_dtype": "int8", "packing": "byte", "zeros": "none"}
    unsigned = {"weight_dtype": "uint8", "packing": "byte", "zeros": "uint8x4"}
    for asked, known in ((signed, unsigned), (unsigned, signed)):
        hit = confirmed(int4(**asked), rows({ours: 0.5}, **known))
        assert (hit.rung, hit.config.kernel) == ("near", "groupwise")


@pytest.mark.parametrize("packing", ["low-first", "gptq", "mxfp4"])
def test_weights_with_another_layout_in_memory_do_not(confirmed, rows, packing):
    weight = {"weight_dtype": "fp4_e2m1"} if packing == "mxfp4" else {}
    asked = Problem.gemm("mixed_mm", m=16, n=4096, k=4096, packing=packing, **{"weight_dtype": "int4", **weight})
    assert confirmed(asked, rows({OURS: 0.5})) is None


def test_up_to_eight_rows_get_the_kernel_for_a_few(lab, ask):
    """`int4` is expected to be the faster one, by the neighbours with more rows."""
    more = [row for n in (3584, 5120) for row in lab.rows(int4(16, n), {OURS: 0.3}, device=H200)]
    few = [row for n in (3584, 5120) for row in lab.rows(int4(8, n), {OURS: 0.4, SKINNY: 0.5}, device=H200)]
    assert ask(int4(7), more + few).config == SKINNY
    known = [row for n in (3584, 5120) for row in lab.rows(int4(8, n), {OURS: 0.4}, device=H200)]
    assert ask(int4(7), more + known).config.kernel == "int4", "where the other was not timed"


def test_an_8_bit_weight_answers_for_none(lab, ask):
    plain = Problem.gemm("mixed_mm", m=16, n=4096, k=4096)
    assert ask(int4(), lab.rows(plain, {}, device=H200)) is None


def test_live_tuning_tries_what_did_well_with_other_groups(lab, rows):
    known = rows({OURS: 0.5, DEQUANTISED: 2.0}, group=64)
    asked = Ask(lab.query(int4(), H200), tuple(lab.catalog(known).tables), Policy(), None)
    assert {config.kernel for config in candidates(asked)[:1]} == {"int4"}
    plain = Ask(lab.query(Problem.gemm("mixed_mm", m=16, n=4096, k=4100), H200), asked.tables, Policy(), None)
    assert all(config.kernel not in ("int4", "dequantised") for config in candidates(plain))


@pytest.mark.parametrize(
    ("m", "packing", "few"), [(1, "tinygemm8", 1), (16, "tinygemm8", 0), (16, "low-first", 1), (512, "low-first", 0)]
)
def test_live_tuning_tries_the_menu_where_nothing_was_measured(lab, m, packing, few):
    asked = int4(m, packing=packing)
    found = candidates(Ask(lab.query(asked, H200), (), Policy(), None))
    assert 4 <= len(found) <= 6
    ours = {config.name for config in found if config.backend == "triton"}
    assert ours == ({"triton:int4_skinny", "triton:int4"} if few else {"triton:int4"})
    assert all(config.rejection(asked, H200) is None for config in found)


def test_the_cost_model_says_nothing(lab):
    assert answer(lab.query(int4(), H200), lab.catalog([]), Policy(model=True, model_gain=0.0)) is None
    expected = saving(Ask(lab.query(int4(n=28672, k=8192), H200), (), Policy(), None))
    assert 0 < expected.us < expected.aten_us


@pytest.mark.parametrize("packing", ["gptq", "gptq2", "awq"])
def test_words_get_the_kernels_of_near_sizes_and_of_another_gpu(lab, rows, packing):
    ours = make("int4", scaled="sums", block_n=128, warps=2, split_k=4)
    asked = lab.query(int4(packing=packing), H200)
    nearby = lab.catalog(rows({ours: 0.5}, packing=packing))
    there = lab.catalog(lab.rows(int4(packing=packing), {ours: 0.5}, device=H100))
    for known, rung in ((nearby, "near"), (there, "sku")):
        for policy in (Policy(confirm=True), Policy(confirm=False), Policy(frozen=True, confirm=False)):
            hit = answer(asked, known, policy)
            assert (hit.rung, hit.config.kernel) == (rung, "int4")


@pytest.mark.parametrize(("asked", "known"), [("gptq", "awq"), ("low-first", "mxfp4"), ("low-first", "gptq")])
def test_near_weights_with_another_layout_in_memory_do_not(lab, rows, asked, known):
    ours = make("int4", scaled="sums", block_n=128, warps=2, split_k=4)
    dtype = {"mxfp4": "fp4_e2m1"}
    rest = {"packing": known} | ({"weight_dtype": dtype[known]} if known in dtype else {})
    known_rows = lab.catalog(rows({ours: 0.5}, **rest))
    assert answer(lab.query(int4(packing=asked), H200), known_rows, Policy(on_miss="aten", confirm=True)) is None
