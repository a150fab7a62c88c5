"""Inductor's own templates and padding as candidates."""

import os
from dataclasses import replace

import pytest
from kit.devices import H200

from gemmdb import Config, Problem
from gemmdb.errors import InputError
from gemmdb.generators.effort import named
from gemmdb.generators.measure.cuda import artifacts
from gemmdb.generators.measure.cuda.artifacts import Emission, Emitted, only_emitted
from gemmdb.generators.measure.cuda.emitted import share_gpus
from gemmdb.generators.measure.cuda.measurer import CudaMeasurer
from gemmdb.generators.measure.cuda.precompiler import Precompiler
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.kernels.aten import misaligned, padded_sizes
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.menus import inductor as inductor_menu

gemm = Problem.gemm
SUM = Config.of("triton", "inductor_sum")
TILE = {"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "stages": 3, "warps": 4}


def names(problem: Problem) -> list[str]:
    return [config.kernel for config in inductor_menu.configs(problem, H200)]


def test_aligned_products_get_templates_and_no_padding() -> None:
    found = names(gemm("mm", m=512, n=4096, k=4096))
    assert sorted(found) == ["inductor_mm", "inductor_mm", "inductor_persistent_tma"]
    assert names(gemm("mm", m=16, n=4096, k=4096)) == []
    assert set(names(gemm("int_mm", m=512, n=4096, k=4096))) == {"inductor_mm"}
    assert names(gemm("mixed_mm", m=512, n=4096, k=4096)) == []


def test_misaligned_products_are_padded_and_not_copied_by_tma() -> None:
    found = names(gemm("mm", m=512, n=4096, k=4095))
    assert found.count("padded") == 2
    assert "inductor_persistent_tma" not in found
    assert set(names(gemm("mm", m=16, n=1001, k=4096))) == {"padded", "inductor_mm"}
    assert len(names(gemm("mm", m=4096, n=1001, k=4096))) <= 9


@pytest.mark.parametrize("sizes", [{"m": 1, "n": 4096}, {"m": 4096, "n": 1}])
@pytest.mark.parametrize(("op", "tried"), [("mm", 1), ("addmm", 1), ("mixed_mm", 1), ("int_mm", 0)])
def test_one_row_or_column_may_be_multiplied_and_summed(op: str, tried: int, sizes: dict[str, int]) -> None:
    assert names(gemm(op, k=4096, **sizes)).count("inductor_sum") == tried
    assert "inductor_sum" not in names(gemm(op, m=2, n=4096, k=4096))


def test_a_build_tries_multiply_and_sum_unless_it_is_quick() -> None:
    tried = {
        effort: [
            c.config.kernel for c in CudaSpace().candidates(gemm("mixed_mm", m=1, n=4096, k=4096), H200, named(effort))
        ]
        for effort in ("quick", "standard", "full")
    }
    assert [found.count("inductor_sum") for found in tried.values()] == [0, 1, 1]


def test_a_constant_weight_has_no_code_apart_from_its_graph() -> None:
    assert names(replace(gemm("mm", m=512, n=4096, k=4096), constant=True)) == []


def test_the_menu_repeats_nothing_and_is_legal() -> None:
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
def test_only_lengths_of_rows_in_memory_are_padded(layout: str, sizes: tuple[int, int, int], wanted: object) -> None:
    m, n, k = sizes
    problem = gemm("mm", m=m, n=n, k=k, layout=layout)
    assert padded_sizes(problem, 8) == wanted
    assert misaligned(problem) == (wanted != sizes)


@pytest.mark.parametrize(
    ("config", "problem", "reason"),
    [
        (Config.of("aten", "padded", multiple=8), gemm("mm", m=64, n=64, k=64), "nothing to pad"),
        (Config.of("triton", "inductor_mm", **TILE), gemm("mixed_mm", m=64, n=64, k=64), "does not solve"),
        (SUM, gemm("mm", m=2, n=64, k=64), "one row or one column"),
        (SUM, gemm("mm", m=1, n=64, k=1), "multiplies elements"),
        (SUM, replace(gemm("addmm", m=1, n=64, k=64), scalars="general"), "alpha and beta"),
        (Config.of("triton", "inductor_persistent_tma", **TILE), gemm("mm", m=64, n=60, k=60), "16 bytes"),
        (Config.of("triton", "inductor_persistent_tma", **TILE), gemm("mm", m=1, n=64, k=64), "size of 1"),
        (
            Config.of("triton", "inductor_mm", **{**TILE, "block_k": 256, "stages": 8}),
            gemm("mm", m=64, n=64, k=64),
            "shared memory",
        ),
        (
            Config.of("triton", "inductor_mm", **{**TILE, "block_k": 16}),
            gemm("int_mm", m=64, n=64, k=64),
            "32 int8",
        ),
        (Config.of("triton", "inductor_mm", **TILE), gemm("mm", m=2**16, n=2**15, k=64), "within the output"),
        (Config.of("triton", "inductor_mm", **TILE), gemm("mm", m=64, n=2**16, k=2**15), "within an operand"),
    ],
)
def test_what_cannot_run_says_why(config: Config, problem: Problem, reason: str) -> None:
    assert reason in str(config.rejection(problem, H200))
    assert config.rejection(problem, H200, ("m",))


@pytest.mark.parametrize("multiple", [7, "8", 0, "import os"])
def test_parameters_are_of_a_fixed_list(multiple: int | str) -> None:
    with pytest.raises(InputError):
        Config.of("aten", "padded", multiple=multiple)


@pytest.mark.parametrize(("outer", "count", "wanted"), [("", 4, "0123"), ("3,5", 8, "35"), ("", 1, ""), ("6", 1, "6")])
def test_processes_that_generate_code_share_the_gpus(
    monkeypatch: pytest.MonkeyPatch, outer: str, count: int, wanted: str
) -> None:
    chosen = set()
    for process in range(100, 108):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", outer)
        monkeypatch.setattr("torch.cuda.device_count", lambda: count)
        monkeypatch.setattr("os.getpid", lambda process=process: process)
        share_gpus()
        chosen.add(os.environ["CUDA_VISIBLE_DEVICES"])
    assert "".join(sorted(chosen)) == wanted


def test_emitted_code_is_a_candidate_of_its_own_and_one_part() -> None:
    config = Config.of("triton", "inductor_mm", **TILE)
    emitted = Emitted.code_of(config)
    assert emitted != config
    assert len({emitted, config, Emitted.code_of(config)}) == 2
    assert emitted.plain == config
    assert only_emitted(config)
    problem = gemm("mm", m=64, n=64, k=64)
    assert artifacts.required(problem, config) == [Emission(problem, config)]
    assert Emission(problem, config).key == Emission(problem, emitted).key
    assert Emission(problem, config).key != Emission(gemm("mm", m=64, n=64, k=128), config).key


def test_all_but_aten_is_confirmed_as_emitted_code() -> None:
    measurer = CudaMeasurer(0, named("standard", "cuda"), Precompiler(90, 232448, 1))
    base = {
        "block_m": 16, "block_n": 64, "block_k": 64, "group_m": 8, "split_k": 2, "swap": 0, "load": "pointer",
        "dequant": "cast", "warps": 4, "stages": 3,
    }  # fmt: skip
    fixup, kernel = (Config.of("triton", "tile", **base, reduce=reduce) for reduce in ("fixup", "kernel"))
    assert measurer.emitted(fixup) == Emitted.code_of(fixup)
    assert measurer.emitted(kernel) == Emitted.code_of(kernel)
    assert measurer.emitted(ATEN) == ATEN
    measurer.close()
