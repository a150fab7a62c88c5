"""Rung `near` on a GPU: splits of K are set anew, what was wrong nearby is not served, and new rows are seen."""

from dataclasses import replace

import pytest
from kit.gpu import ALGORITHM, make

from gemmdb.cost.transfer import group_of, members, programs
from gemmdb.kernels.config import Config
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.lookup import answer
from gemmdb.settings import Policy
from gemmdb.table.catalog import Catalog, Source
from gemmdb.table.measurement import Status
from gemmdb.table.writer import record_live

GPU = Device("cuda", "sm90", "Some GPU", 132, 80)
POLICY = Policy(model=False, confirm=True)
KNOWN = Problem.gemm("mm", m=16, n=2048, k=4096)


def tile(split=1, n=64):
    return make("tile", block_n=n, block_k=128, split_k=split, reduce="none" if split == 1 else "fixup")


def near(lab, problem, *tables):
    return answer(lab.query(problem, GPU), lab.catalog(*tables), POLICY)


def rows(lab, problem, ratios, **where):
    return [*lab.rows(problem, ratios, device=GPU, clock="graph", **where)]


def test_a_split_of_k_is_set_anew_so_that_the_multiprocessors_are_full_once(lab):
    """32 tiles in 8 slices are two programs for each of 132 multiprocessors; 40 tiles take 6 slices for that."""
    hit = near(lab, KNOWN.resized(16, 2560, 4096), rows(lab, KNOWN, {tile(8): 0.5, tile(): 0.7}))
    assert (hit.rung, hit.config.values["reduce"]) == ("near", "fixup")
    assert hit.config.values["split_k"] in (4, 6)


@pytest.mark.parametrize(("k", "served"), [(4160, True), (4128, False)])
def test_a_template_that_masks_every_step_is_another_kernel(lab, k, served):
    """64 divides 4096 and 4160. At 4128 the template of Inductor masks every load, so it is no longer fast."""
    values = {"block_m": 16, "block_n": 64, "block_k": 64, "group_m": 8, "warps": 4, "stages": 5}
    template = Config.of("triton", "inductor_mm", **values)
    hit = near(lab, KNOWN.resized(16, 2048, k), rows(lab, KNOWN, {template: 0.5}))
    assert (hit is not None and hit.config == template) == served


@pytest.mark.parametrize("config", [tile(1), tile(8), tile(2), Config("aten", "default")])
def test_a_config_is_a_member_of_its_family_where_it_ran(config):
    found = group_of(config, KNOWN, GPU)
    assert config in [one.config for one in members(found, KNOWN, GPU)]
    assert group_of(config, KNOWN, GPU) is found


def test_a_short_k_has_no_members_of_a_split_family():
    assert [*members(group_of(tile(8), KNOWN, GPU), KNOWN.resized(16, 2048, 256), GPU)] == []


def test_programs_of_a_tile_are_counted_and_those_of_a_library_are_not():
    assert programs(tile(8), KNOWN.resized(17, 2048, 4096)) == 2 * 32 * 8
    assert programs(Config("aten", "default"), KNOWN) is None


def test_what_was_wrong_at_one_neighbour_is_not_served_with_another_split(lab):
    """The other neighbour timed it in full, and found nothing wrong."""
    beside, asked = KNOWN.resized(16, 2176, 4096), KNOWN.resized(16, 2112, 4096)
    good = rows(lab, KNOWN, {tile(8): 0.5, tile(): 0.6}) + rows(lab, beside, {tile(): 0.6})
    assert near(lab, asked, good).config.values["reduce"] == "fixup"
    wrong = rows(lab, beside, {tile(7): 0.5}, status=Status.WRONG)[1:]
    assert near(lab, asked, good + wrong).config == tile()


def test_rows_that_are_written_later_are_seen(lab):
    """What was read of neighbours is kept, for as long as the file stays as it is."""
    slow, fast = tile(), tile(n=32)
    catalog = lab.catalog(rows(lab, KNOWN, {slow: 0.6}))
    query = lab.query(KNOWN.resized(16, 2112, 4096), GPU)
    mutable = Catalog([(Source(catalog.tables[0].path, "user"), catalog.tables[0])])
    assert answer(query, mutable, POLICY).config == slow
    record_live(catalog.tables[0].path, rows(lab, KNOWN, {fast: 0.4}, run="later"))
    assert answer(query, mutable, POLICY).config == fast
    assert answer(query, mutable, replace(POLICY, deny="block_n=32")).config == slow


def test_output_rows_off_multiples_of_16_bytes_are_another_gemm(lab):
    """cuBLAS has no fast kernel for them: its time at N = 2048 says nothing about N = 2050."""
    assert near(lab, KNOWN.resized(16, 2056, 4096), rows(lab, KNOWN, {tile(): 0.5})).config == tile()
    assert near(lab, KNOWN.resized(16, 2050, 4096), rows(lab, KNOWN, {tile(): 0.5})) is None
    apart = KNOWN.resized(16, 2042, 4096)
    assert near(lab, KNOWN.resized(16, 2050, 4096), rows(lab, apart, {tile(): 0.5})).config == tile()


@pytest.mark.parametrize("timed", [True, False])
def test_what_was_wrong_at_a_neighbour_in_any_table_is_not_served(lab, timed):
    """Of a neighbour that two tables hold, the first one's times count, and the failures of both; also of one that has
    no times of use."""
    beside, asked = KNOWN.resized(16, 2176, 4096), KNOWN.resized(16, 2112, 4096)
    good = rows(lab, KNOWN, {tile(): 0.5, tile(n=32): 0.7}) + (rows(lab, beside, {tile(): 0.5}) if timed else [])
    assert near(lab, asked, good).config == tile()
    wrong = rows(lab, beside, {tile(): 0.5}, status=Status.WRONG)
    hit = near(lab, asked, good, wrong)
    assert hit is None or hit.config == tile(n=32)


def test_what_was_wrong_for_one_row_is_not_served_for_two(lab):
    """The times of a single row say nothing about two, but the kernel is the same."""
    good = rows(lab, KNOWN.resized(8, 2048, 4096), {tile(): 0.5, tile(n=32): 0.7})
    wrong = rows(lab, KNOWN.resized(1, 2048, 4096), {tile(): 0.5}, status=Status.WRONG)
    assert near(lab, KNOWN.resized(2, 2048, 4096), good).config == tile()
    assert near(lab, KNOWN.resized(2, 2048, 4096), good + wrong).config == tile(n=32)


def test_what_was_wrong_at_a_neighbour_is_served_where_it_was_right_itself(lab):
    beside = KNOWN.resized(16, 2176, 4096)
    found = rows(lab, KNOWN, {tile(): 0.5}) + rows(lab, beside, {tile(): 0.5}, status=Status.WRONG)
    hit = near(lab, KNOWN, found)
    assert (hit.rung, hit.config) == ("exact", tile())


def test_the_cost_model_proposes_nothing_that_was_wrong_at_a_neighbour(lab):
    """Without rung `near`, too."""
    policy = replace(POLICY, near=False, model=True, on_miss="aten")
    h200 = Device("cuda", "sm90", "NVIDIA H200", 132, 140)
    asked = KNOWN.resized(16, 2112, 4096)
    first = answer(lab.query(asked, h200), lab.catalog([]), policy)
    assert (first.rung, first.config.backend) == ("model", "triton")
    wrong = [*lab.rows(KNOWN, {first.config: 0.5}, device=h200, clock="graph", status=Status.WRONG)]
    again = answer(lab.query(asked, h200), lab.catalog(wrong), policy)
    assert again is None or again.config != first.config


def test_rows_in_which_few_kernels_were_timed_beside_a_librarys_algorithms_do_not_hide_other_neighbours(lab):
    """A search of algorithms says nothing about the kernels that it did not time, although ATen won there."""
    beside, asked = KNOWN.resized(16, 2112, 4096), KNOWN.resized(17, 2112, 4096)
    algorithm = Config.of("cublaslt", "matmul", **ALGORITHM)
    wide = rows(lab, KNOWN, {tile(): 0.8, tile(n=32): 0.82})
    searched = rows(lab, beside, {algorithm: 1.0, tile(n=128): 1.3})
    alone, both = near(lab, asked, wide), near(lab, asked, wide + searched)
    assert alone.config == both.config == tile()
    assert (both.speedup, both.evidence["expected_loss"]) == (alone.speedup, alone.evidence["expected_loss"])
    assert [one["problem"] for one in both.evidence["neighbours"]] == [KNOWN.text]
    only = near(lab, asked, searched)
    assert (only.rung, [one["problem"] for one in only.evidence["neighbours"]]) == ("near", [beside.text])
