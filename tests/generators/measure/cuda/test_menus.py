"""The menus of CUTLASS kernels, and of Inductor's own templates and padding."""

from dataclasses import replace

import pytest
from kit.devices import H200

from gemmdb import Config, Problem
from gemmdb.errors import InputError
from gemmdb.generators.effort import named
from gemmdb.generators.measure.cuda.artifacts import Library
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.kernels.aten import misaligned, padded_sizes
from gemmdb.kernels.menus import cutlass as cutlass_menu
from gemmdb.kernels.menus import inductor as inductor_menu

gemm = Problem.gemm
ROWS = (1, 16, 17, 32, 64, 100, 128, 256, 1000, 4096)
OPS = [
    ("mixed_mm", {"fusion": "scale"}), ("int_mm", {"fusion": "scale"}), ("mm", {"layout": "tn"}), ("addmm", {}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "rest"), OPS, ids=[op for op, _ in OPS])
@pytest.mark.parametrize("m", ROWS)
def test_the_menu_is_legal_distinct_and_small(op, rest, m):
    # A transposed activation has rows along M.
    size = m if "layout" not in rest else (m + 7) // 8 * 8
    problem = gemm(op, m=size, n=4096, k=4096, **rest)
    found = cutlass_menu.configs(problem, H200)
    assert 0 < len(found) == len(set(found)) <= 16
    assert all(config.rejection(problem, H200) is None for config in found)
    assert len({Library.of(problem, config).key for config in found}) <= 8


def test_no_kernel_of_the_menu_is_illegal_for_every_problem():
    for op, rest in OPS:
        found = set()
        entries = set()
        for m in ROWS:
            problem = gemm(op, m=(m + 7) // 8 * 8, n=4096, k=4096, **rest)
            entries |= {(e.m, e.n, e.k, e.schedule, e.swap, e.split) for e in cutlass_menu.entries(problem)}
            for config in cutlass_menu.configs(problem, H200):
                v = config.values
                split = v["split_k"] != 1
                found.add((v["tile_m"], v["tile_n"], v["tile_k"], v["schedule"], v["swap"], split))
        assert found == entries


@pytest.mark.parametrize(("effort", "tried"), [("quick", False), ("standard", True), ("full", True)])
def test_cutlass_is_tried_from_effort_standard_on_where_it_can_be_compiled(effort, tried):
    problem = gemm("mixed_mm", m=64, n=4096, k=4096)
    wanted = cutlass_menu.configs(problem, H200) if tried else []
    for cutlass, configs in ((True, wanted), (False, [])):
        found = CudaSpace(cutlass=cutlass).candidates(problem, H200, named(effort, "cuda"))
        assert [c.config for c in found if c.config.backend == "cutlass"] == configs


SUM = Config.of("triton", "inductor_sum")
TILE = {"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "stages": 3, "warps": 4}


def names(problem: Problem) -> list[str]:
    return [config.kernel for config in inductor_menu.configs(problem, H200)]


def test_aligned_gemms_get_templates_and_no_padding():
    found = names(gemm("mm", m=512, n=4096, k=4096))
    assert sorted(found) == ["inductor_mm", "inductor_mm", "inductor_persistent_tma"]
    assert names(gemm("mm", m=16, n=4096, k=4096)) == []
    assert set(names(gemm("int_mm", m=512, n=4096, k=4096))) == {"inductor_mm"}
    assert names(gemm("mixed_mm", m=512, n=4096, k=4096)) == []


def test_misaligned_gemms_are_padded_and_not_copied_by_tma():
    found = names(gemm("mm", m=512, n=4096, k=4095))
    assert found.count("padded") == 3
    assert "inductor_persistent_tma" not in found
    assert set(names(gemm("mm", m=16, n=1001, k=4096))) == {"padded", "inductor_mm"}
    assert len(names(gemm("mm", m=4096, n=1001, k=4096))) <= 10


@pytest.mark.parametrize("sizes", [{"m": 1, "n": 4096}, {"m": 4096, "n": 1}])
@pytest.mark.parametrize(("op", "tried"), [("mm", 1), ("addmm", 1), ("mixed_mm", 1), ("int_mm", 0)])
def test_one_row_or_column_may_be_multiplied_and_summed(op: str, tried: int, sizes: dict[str, int]):
    assert names(gemm(op, k=4096, **sizes)).count("inductor_sum") == tried
    assert "inductor_sum" not in names(gemm(op, m=2, n=4096, k=4096))


def test_a_constant_weight_has_no_code_apart_from_its_graph():
    assert names(replace(gemm("mm", m=512, n=4096, k=4096), constant=True)) == []


def test_the_menu_repeats_nothing_and_is_legal():
    for m in (1, 64, 100, 256, 8192):
        for dtype in ("bf16", "fp16", "fp32"):
            problem = gemm("addmm", m=m, n=4000, k=4095 + m % 2, dtype=dtype)
            found = inductor_menu.configs(problem, H200)
            assert len(found) == len(set(found))
            assert not any(config.rejection(problem, H200) for config in found)


@pytest.mark.parametrize(
    ("layout", "sizes", "wanted"),
    [
        ("nt", (33, 1001, 777), (33, 1008, 784)),
        ("nn", (33, 1001, 777), (33, 1008, 784)),
        ("tn", (33, 1001, 777), (40, 1008, 777)),
        ("tt", (33, 1001, 777), (40, 1008, 784)),
        ("nt", (33, 1008, 784), (33, 1008, 784)),
    ],
)
def test_only_lengths_of_rows_in_memory_are_padded(layout: str, sizes: tuple[int, int, int], wanted: object):
    m, n, k = sizes
    problem = gemm("mm", m=m, n=n, k=k, layout=layout)
    assert padded_sizes(problem, 8) == wanted
    assert misaligned(problem) == (wanted != sizes)


def test_as_inductor_pads_every_size_but_1_is_padded():
    assert padded_sizes(gemm("mm", m=33, n=1001, k=777), 8, every=True) == (40, 1008, 784)
    assert padded_sizes(gemm("mm", m=1, n=1001, k=777), 8, every=True) == (1, 1008, 784)


@pytest.mark.parametrize(
    ("config", "problem", "reason"),
    [
        (Config.of("aten", "padded", multiple=8), gemm("mm", m=64, n=64, k=64), "nothing to pad"),
        (Config.of("aten", "padded", multiple=16, output="view"), gemm("int_mm", m=72, n=1000, k=520), "no integers"),
        (Config.of("triton", "inductor_mm", **TILE), gemm("mixed_mm", m=64, n=64, k=64), "does not solve"),
        (SUM, gemm("mm", m=2, n=64, k=64), "one row or one column"),
        (SUM, gemm("mm", m=1, n=64, k=1), "multiplies elements"),
        (SUM, replace(gemm("addmm", m=1, n=64, k=64), scalars="general"), "alpha and beta"),
        (Config.of("triton", "inductor_persistent_tma", **TILE), gemm("mm", m=64, n=60, k=60), "16 bytes"),
        (Config.of("triton", "inductor_persistent_tma", **TILE), gemm("mm", m=1, n=64, k=64), "size of 1"),
        (Config.of("triton", "inductor_mm", **{**TILE, "block_k": 256, "stages": 8}), gemm("mm", m=64, n=64, k=64),
         "shared memory"),
        (Config.of("triton", "inductor_mm", **{**TILE, "block_k": 16}), gemm("int_mm", m=64, n=64, k=64), "32 int8"),
        (Config.of("triton", "inductor_mm", **TILE), gemm("mm", m=2**16, n=2**15, k=64), "within the output"),
        (Config.of("triton", "inductor_mm", **TILE), gemm("mm", m=64, n=2**16, k=2**15), "within an operand"),
    ],
)  # fmt: skip
def test_what_cannot_run_says_why(config: Config, problem: Problem, reason: str):
    assert reason in str(config.rejection(problem, H200))
    assert config.rejection(problem, H200, ("m",))


@pytest.mark.parametrize("multiple", [7, "8", 0, "import os"])
def test_parameters_are_of_a_fixed_list(multiple: int | str):
    with pytest.raises(InputError):
        Config.of("aten", "padded", multiple=multiple)


def bmm(batch=8, m=64, n=64, k=128, **rest) -> Problem:
    return gemm("bmm", batch=batch, m=m, n=n, k=k, **rest)


def batched(problem: Problem) -> list[Config]:
    """What a standard build tries."""
    return [one.config for one in CudaSpace().candidates(problem, H200, named("standard", "cuda"))]


def test_a_batch_with_few_tiles_gets_smaller_ones():
    """max-autotune finds them, and a batch of 8 heads has 8 tiles of 128 by 128."""

    def sides(problem):
        templates = [config.values for config in batched(problem) if config.kernel == "inductor_bmm"]
        return {(values["block_m"], values["block_n"]) for values in templates}

    assert (32, 32) in sides(bmm(m=128, n=128, dtype="fp32"))
    assert (32, 32) not in sides(bmm(batch=256, m=128, n=128, dtype="fp32"))
    assert (64, 32) in sides(bmm(m=33, n=128)) - sides(bmm(m=32, n=128))


@pytest.mark.parametrize(
    ("problem", "swapped", "sliced"),
    [
        (bmm(64, 4, 1024, 128), True, False),  # A step's queries of a group by its keys.
        (bmm(8, 4, 128, 4096, layout="nn"), True, True),  # The same by its values: few tiles, much to sum.
        (bmm(16, 1, 16, 4096), False, True),  # The first half of an adapter.
        (bmm(16, 1, 4096, 16), True, False),  # Its second half.
        (bmm(64, 1024, 1024, 128), False, False),
        (bmm(8, 4, 128, 4096, layout="nn", dtype="fp32"), False, True),
        (bmm(64, 4, 1024, 128, constant_weight=True), False, False),
    ],
    ids=lambda value: getattr(value, "head", value),
)
def test_what_inductors_template_of_batches_cannot_do_is_tried(problem, swapped, sliced):
    ours = [config.values for config in batched(problem) if config.kernel == "batch"]
    assert any(value["swap"] == 1 and value["split_k"] == 1 for value in ours) == swapped
    assert any(value["split_k"] > 1 for value in ours) == sliced
    assert len(ours) <= 12
    for value in ours:
        assert value["swap"] == 1 or value["split_k"] > 1
        tiles = problem.batch * -(-problem.m // value["block_m"]) * -(-problem.n // value["block_n"])
        assert value["split_k"] == 1 or tiles * value["split_k"] <= 4 * 132
        assert value["split_k"] <= max(problem.k // value["block_k"] // 2, 1)
