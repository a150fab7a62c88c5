"""The kernel of groups: what it is legal for, how many programs it may need, what is tried of it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.devices import A100, H200
from kit.gpu import BASES, make

from gemmdb.kernels import rules, triton
from gemmdb.kernels.config import Config
from gemmdb.kernels.menus import inductor as inductor_menu
from gemmdb.kernels.menus.grouped import MENU
from gemmdb.kernels.triton.grouped import grid
from gemmdb.key.device import Device
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Operand
from gemmdb.key.problem import Problem

CPU = Device("cpu", "cpu", "a CPU", 4)
TEMPLATE = {"block_m": 16, "block_n": 64, "block_k": 64, "group_m": 8, "warps": 4, "stages": 3}


def config(**changes) -> Config:
    return make("grouped", **changes)


def template(**changes) -> Config:
    return Config.of("triton", "inductor_grouped", **{**TEMPLATE, **changes})


def experts(m: int = 64, n: int = 512, k: int = 256, **rest) -> Problem:
    return Problem.gemm("grouped_mm", m=m, n=n, k=k, **rest)


def fp8(m: int = 64, n: int = 512, k: int = 256, fast: bool = False, **rest) -> Problem:
    return experts(m, n, k, dtype="fp8_e4m3", fast_accum=fast, **rest)


GRADIENT = experts(512, 512, 64, ragged="k", layout="tn")
TURNED = experts(layout="tt")
LOW = replace(experts(), a=Operand("bf16", Layout("row-padded", 4)))


@pytest.mark.parametrize(
    ("problem", "one", "reason"),
    [
        (experts(), config(), None),
        (experts(), config(load="tma"), None),
        (experts(), config(load="tma", flatten=1), None),
        (experts(dtype="fp16"), config(), None),
        (experts(groups=1023), config(), None),
        (experts(groups=1024), config(), "at most 1023 groups"),
        (experts(n=510), config(), "pads the rows of its output"),
        (experts(k=100), config(), None),
        (experts(k=100), config(load="tma"), "multiples of 16 bytes"),
        (LOW, config(load="tma"), "multiples of 16 bytes"),
        (TURNED, config(), None),
        (TURNED, config(load="tma"), "begins anywhere in a row of memory"),
        (experts(fusion="pointwise"), config(), None),
        (experts(fusion="pointwise"), config(flatten=1), "rows beyond the last group"),
        (experts(n=2**17, k=2**15), config(), "32 bits wide"),
        (experts(n=2**14, k=2**15, groups=512), config(), None),
        (GRADIENT, config(), None),
        (GRADIENT, config(load="tma"), None),
        (experts(), config(split_k=2), None),
        (experts(), config(split_k=8, load="tma", swap=1), None),
        (experts(k=192), config(split_k=2), "K=192 has fewer than two steps of 64 for a slice"),
        (experts(), config(split_k=2, load="tma", flatten=1), "cannot split K"),
        (experts(), config(split_k=8, block_m=128, block_n=128, resident=2, warps=8), "may take more than 128 MiB"),
        (GRADIENT, config(split_k=2), "the groups divide K already"),
        (experts(512, 512, 64, ragged="k"), config(), None),
        (experts(512, 512, 64, ragged="k"), config(load="tma"), "begins anywhere in a row of memory"),
        (GRADIENT, config(flatten=1), "groups of one length"),
        (experts(), config(block_m=256, block_n=256, block_k=128, warps=16), "do not fit into shared memory"),
        (Problem.gemm("mm", m=64, n=512, k=256), config(), "does not solve mm"),
        (experts(), template(), None),
        (experts(fusion="pointwise"), template(), "rows beyond the last group"),
        (experts(n=510), template(), "pads the rows of its output"),
        (TURNED, template(), "begins anywhere in a row of memory"),
        (GRADIENT, template(), None),
        (experts(512, 512, 64, ragged="k"), template(), "begins anywhere in a row of memory"),
        (fp8(), config(), None),
        (fp8(), config(load="tma", flatten=1), None),
        (fp8(k=272), config(), None),
        (fp8(k=264), config(), "K and N to be multiples of 16"),
        (fp8(n=520), config(), "K and N to be multiples of 16"),
        (replace(fp8(), a=Operand("fp8_e4m3", Layout("row-padded", 8))), config(), "start at multiples of 16 bytes"),
        (fp8(), config(block_k=16), "the matrix unit takes 32 fp8_e4m3 of K at once"),
        (fp8(), config(swap=1, block_k=512, stages=2), "at most 256 products before they are added in fp32"),
        (fp8(fast=True), config(swap=1, block_k=512, stages=2), None),
        (fp8(), config(block_k=512, stages=2), None),
        (fp8(), template(), None),
        (fp8(k=264), template(), "K and N to be multiples of 16"),
        (fp8(), template(block_k=16), "the matrix unit takes 32 fp8 of K at once"),
        (fp8(fusion="pointwise"), template(), "rows beyond the last group"),
    ],
)
def test_each_rule_has_its_reason(problem, one, reason):
    found = one.rejection(problem, H200)
    assert found is None if reason is None else reason in str(found)


def test_the_partial_sums_of_a_split_k_do_not_depend_on_the_rows():
    one = config(split_k=4, resident=3)
    assert triton.tiles(one, experts()) == triton.tiles(one, experts(2**20)) == 3 * 256
    large = replace(H200, units=257)
    assert "of 256 multiprocessors" in str(one.rejection(experts(), large))
    assert config(resident=3).rejection(experts(), large) is None


def test_without_tensor_maps_there_is_no_template():
    assert "need compute capability 9.0" in str(template().rejection(experts(), A100))
    assert config().rejection(experts(), A100) is None


@pytest.mark.parametrize("one", [config(), template()], ids=lambda one: one.text)
def test_groups_of_fp8_are_multiplied_on_hopper_alone(one):
    b200 = Device("cuda", "sm100", "NVIDIA B200", 148, 180)
    assert str(one.rejection(fp8(), b200)) == "torch's kernel for groups of fp8 runs only on Hopper"
    assert one.rejection(experts(), b200) is None


@pytest.mark.parametrize(
    ("problem", "device", "captured"),
    [
        (experts(), H200, True),
        (experts(dtype="fp16"), H200, False),
        (experts(), A100, False),
        (fp8(), H200, True),
        (experts(dtype="fp16"), CPU, True),
        (Problem.gemm("mm", m=64, n=512, k=256, dtype="fp16"), A100, True),
    ],
)
def test_where_torch_reads_the_sizes_back(problem, device, captured):
    assert (rules.reject_uncapturable(problem, device) is None) == captured


@given(st.lists(st.integers(0, 90), min_size=1, max_size=12), st.integers(0, 50), st.sampled_from([16, 64]))
def test_there_are_enough_programs_for_every_split(sizes, beyond, block):
    """One for each tile of a group, and of the rows beyond the last one."""
    problem = experts(m=max(sum(sizes) + beyond, 1), groups=len(sizes))
    names = triton.names(config(block_m=block), problem)
    rows = [*sizes, problem.m - sum(sizes)]
    columns = -(-problem.n // BASES["grouped"]["block_n"])
    programs, *rest = grid(problem.m, problem.n, names, lambda size, step: -(-size // step))
    needed = columns * sum(-(-one // block) for one in rows)
    assert programs >= needed
    assert rest == [1, 1]
    split = triton.names(config(block_m=block, split_k=4), problem)
    assert grid(problem.m, problem.n, split, lambda size, step: -(-size // step)) == (4 * programs, 1, 1)


def test_there_is_a_program_for_each_tile_of_each_gradient():
    names = triton.names(config(), GRADIENT)
    assert grid(500, 512, names, lambda size, step: -(-size // step)) == (8 * 32 * 8, 1, 1)


@pytest.mark.parametrize(
    ("problem", "one", "masked"),
    [
        (experts(k=256), config(), 0), (experts(k=264), config(), 1), (experts(k=264), config(load="tma"), 0),
        (experts(512, 512, 72, ragged="k", layout="tn"), config(), 0),
    ],
)  # fmt: skip
def test_a_time_with_masked_loads_says_nothing_about_one_without(problem, one, masked):
    assert one.spec.compiled(one, problem) == masked


@pytest.mark.parametrize("groups", [1, 7, 8, 128, 1023])
def test_there_is_a_slot_for_each_group_and_for_the_rows_beyond(groups):
    slots = int(triton.names(config(), experts(groups=groups))["SLOTS"])
    assert slots > groups
    assert slots & (slots - 1) == 0


def numbers_of_rows(*others):
    """Many for a plain problem, and three for each of the others."""
    plain = [(m, {}) for m in (2, 8, 64, 200, 500, 4096, 32768)]
    return plain + [(m, rest) for m in (2, 200, 32768) for rest in others]


MENUS = [
    *((experts, 30, *case) for case in numbers_of_rows({"layout": "nn"}, {"fusion": "pointwise"}, {"groups": 128})),
    *((fp8, 22, *case) for case in numbers_of_rows({"fast": True}, {"fusion": "pointwise"}, {"groups": 128})),
]


@pytest.mark.parametrize(("make_problem", "most", "m", "rest"), MENUS)
def test_every_number_of_rows_has_a_menu(make_problem, most, m, rest):
    problem = make_problem(m, 4096, 2048, **rest)
    legal = [one for one in MENU.usual(problem, H200) if not one.rejection(problem, H200)]
    assert 5 <= len(legal) <= most
    assert len(set(legal)) == len(legal)
    assert set(legal) <= set(MENU.whole(problem, H200))
    assert bool(inductor_menu.configs(problem, H200)) == (problem.fusion == "none")


@pytest.mark.parametrize(
    ("one", "promotes"),
    [
        (config(), False), (config(swap=1), True), (config(block_m=64, block_n=128), True),
        (config(swap=1, warps=2), False),
    ],
)  # fmt: skip
def test_sums_of_fp8_are_added_in_fp32_where_the_matrix_unit_keeps_few_bits(one, promotes):
    assert ("PROMOTE" in triton.names(one, fp8())) == promotes
    assert "PROMOTE" not in triton.names(one, fp8(fast=True))
    assert "PROMOTE" not in triton.names(one, experts())


@pytest.mark.parametrize("k", [8, 512, 8192])
def test_gradients_have_a_menu(k):
    problem = experts(2048, 1536, k, ragged="k", layout="tn", groups=32)
    legal = [one for one in MENU.usual(problem, H200) if not one.rejection(problem, H200)]
    assert 5 <= len(legal) <= 14
    assert inductor_menu.configs(problem, H200)
