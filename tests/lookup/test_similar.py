"""What to measure for a problem that the cost model does not cover: the best of measured ones of its kind."""

import pytest
from kit.gpu import make

from gemmdb.kernels.config import ATEN
from gemmdb.kernels.menus.batch import SCALED_BLOCKS
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.lookup.acceptance.tuning import candidates
from gemmdb.lookup.ask import Ask
from gemmdb.lookup.ranking import LIVE_CANDIDATES, uncovered
from gemmdb.lookup.similar import MOST_GROUPS, similar
from gemmdb.settings import Policy
from gemmdb.table.measurement import Status

GPU = Device("cuda", "sm90", "Some GPU", 132, 80)
ASKED = Problem.gemm("mm", m=16, n=2560, k=4093)
KIN = Problem.gemm("addmm", m=16, n=2048, k=4091, dtype="fp16")
ALIGNED = Problem.gemm("mm", m=16, n=2560, k=4096)


def tile(split=1, **changes):
    return make("tile", split_k=split, reduce="none" if split == 1 else "kernel", **changes)


@pytest.fixture
def ask(lab, no_shipped_tables):
    """An ask about ASKED with tables of (problem, ratios) pairs; a config with no ratio crashed."""

    def ask(*known, problem=ASKED, device=GPU, **policy):
        rows = []
        for one, ratios in known:
            timed = {config: ratio for config, ratio in ratios.items() if ratio is not None}
            failed = dict.fromkeys(set(ratios) - set(timed), 1.0)
            rows += lab.rows(one, timed, device=device, clock="graph")
            rows += list(lab.rows(one, failed, device=device, clock="graph", status=Status.CRASH, run="other"))[1:]
        return Ask(lab.query(problem, device), tuple(lab.catalog(rows).tables), Policy(**policy), None)

    return ask


def test_what_was_best_on_another_dtype_and_op_is_tried_first(ask):
    best, second = tile(), tile(block_n=128, warps=8)
    asked = ask((KIN, {best: 0.5, second: 0.6}))
    assert uncovered(ASKED)
    assert uncovered(KIN)
    assert similar(asked) == [best]  # The second one adds nothing to the first.
    assert candidates(asked)[0] == best


def test_each_is_what_adds_the_most_to_those_before(ask):
    steady, here, there = tile(), tile(block_n=128), tile(block_n=32)
    other = KIN.resized(16, 3072, 4091)
    found = similar(ask((KIN, {steady: 0.5, here: 0.4, there: 0.9}), (other, {steady: 0.5, here: 0.9, there: 0.4})))
    assert found[0] == steady
    assert set(found[1:]) == {here, there}


def test_nearer_problems_count_for_more(ask):
    near, far = tile(block_n=32), tile(block_n=128)
    places = {near: KIN.resized(16, 2560, 4091), far: KIN.resized(16, 20001, 30001)}
    found = similar(ask(*((place, {one: 0.5 if one == best else 0.8 for one in places})
                          for best, place in places.items())))  # fmt: skip
    assert found == [near, far]


def test_splits_of_k_are_those_that_fill_the_device_here(ask):
    split = tile(split=4)  # 32 tiles, four times: the multiprocessors are full.
    found = similar(ask((KIN, {split: 0.5})))
    assert [config.values["split_k"] for config in found] == [3, 2]  # Of 40 tiles.
    assert all(config.rejection(ASKED, GPU) is None for config in found)


def test_problems_of_another_kind_do_not_count(ask):
    for other in (
        ALIGNED,
        Problem.gemm("mm", m=16, n=2560, k=4093, dtype="fp32"),
        Problem.gemm("mixed_mm", m=16, n=2560, k=4093),
        ASKED.resized(1, 2560, 4093),
    ):
        assert similar(ask((other, {tile(): 0.5}))) == [], other.text


def test_nothing_that_failed_or_may_not_be_served(ask):
    bad, good = tile(block_n=128), tile()
    assert similar(ask((KIN, {bad: 0.4, good: 0.5}), (KIN.resized(16, 2048, 2047), {bad: None}))) == [good]
    assert similar(ask((KIN, {good: 0.5}), deny="triton")) == []
    assert similar(ask((KIN, {ATEN: 1.0}))) == []


def test_few_are_named_and_another_device_is_not_asked(ask, lab):
    many = {tile(block_n=n, warps=w, stages=s): 0.5 for n in (32, 64, 128) for w in (2, 4) for s in (2, 3, 4)}
    others = [KIN.resized(16, 2048 + 8 * step, 4091) for step in range(len(many))]
    asked = ask(*((one, {config: 0.4 if config == best else 0.9 for config in many})
                  for one, best in zip(others, many, strict=True)))  # fmt: skip
    assert len(similar(asked)) == MOST_GROUPS
    elsewhere = Device("cuda", "sm90", "Another GPU", 132, 80)
    assert similar(Ask(lab.query(ASKED, elsewhere), asked.tables, Policy(), None)) == []


def test_a_modelled_table_goes_before_the_formula(lab, no_shipped_tables):
    device = Device("cuda", "sm80", "NVIDIA A100-SXM4-80GB", 108, 80)
    asked = Problem.gemm("mm", m=64, n=1024, k=2048)
    bare = Ask(lab.query(asked, device), (), Policy(), None)
    unlikely = candidates(bare)[-1]
    rows = list(lab.rows(asked, {unlikely: 0.5}, device=device, clock="model"))
    found = candidates(Ask(lab.query(asked, device), tuple(lab.catalog(rows).tables), Policy(), None))
    assert found[0] == unlikely
    assert set(found) == set(candidates(bare))


def test_of_sizes_of_zero_nothing_is_tried(ask):
    assert similar(ask((KIN, {tile(): 0.5}), problem=ASKED.resized(0, 2560, 4093))) == []


def blocks(n: int) -> Problem:
    return Problem.gemm("scaled_mm", m=16, n=n, k=7168, scales="block")


def test_of_scales_of_blocks_the_menu_is_tried_where_nothing_is_known(ask):
    problem = blocks(2048)
    menu = list(SCALED_BLOCKS.usual(problem, GPU))
    assert len(menu) >= 4
    assert candidates(ask(problem=problem)) == menu


def test_beside_what_was_fast_nearby_live_tuning_tries_the_menu_of_scales_of_blocks(ask):
    """The measured problems do not know the kernels that are newer."""
    near = make("scaled_blocks", swap=1, split_k=4, stages=8)
    found = candidates(ask((blocks(2560), {near: 0.5}), problem=blocks(2048)))
    assert not any("blocks" in config.values for config in found[:1])
    assert any("blocks" in config.values for config in found[:LIVE_CANDIDATES])


def test_the_split_of_a_kernel_of_blocks_fills_the_gpu_at_other_sizes_too(ask):
    """112 tiles of 64 columns in 4 slices are 4 programs for each of 132 multiprocessors, and so are 64 in 8."""
    there, here = (make("scaled_blocks", swap=1, blocks=1, split_k=split) for split in (4, 8))
    assert similar(ask((blocks(7168), {there: 0.5}), problem=blocks(4096))) == [here]
