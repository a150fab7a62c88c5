"""Candidates of batches, fp8 and int4 on a GPU: what is tried, where there are none, and why."""

from dataclasses import replace

import pytest
from kit.candidates import OURS, bmm, candidates, fast, int4, names, scaled, tried
from kit.devices import A100, H200, L4

from gemmdb.generators.measure.cuda.space import from_menu
from gemmdb.kernels.config import ATEN
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Operand

BATCHED = {"triton:inductor_bmm"}
SLICED = {"triton:inductor_bmm", "triton:batch"}
"""Where swapped tiles or slices of K may help."""
SCALED = {"triton:inductor_mm", "triton:inductor_scaled_tma"}


@pytest.mark.parametrize(
    ("problem", "effort", "kernels", "most"),
    [
        *((bmm(), effort, BATCHED, 11) for effort in ("quick", "standard")), (bmm(), "full", SLICED, 310),
        (bmm(m=8), "standard", SLICED, 12), (bmm(k=4096), "standard", SLICED, 14),
        (fast(1), "quick", OURS, 35), (fast(16), "quick", {"triton:narrow"}, 17), (fast(512), "quick", SCALED, 10),
        (fast(2), "standard", {*OURS, "triton:inductor_mm"}, 38),
        (fast(64), "standard", {"triton:narrow", *SCALED}, 22),
        (fast(65), "standard", SCALED, 10), (fast(512), "standard", SCALED, 10), (fast(512), "full", SCALED, 10),
    ],
)  # fmt: skip
def test_what_is_tried(problem, effort, kernels, most):
    found = [one for one in candidates(problem, effort) if one.config.backend != "cublaslt"]
    assert names(tried(problem, effort)) == kernels
    assert 3 <= len(found) <= most
    assert not any(one.rejected for one in found)
    # The cost model ranks our kernels; of other kernels everything is tried.
    assert {one.config.name for one in found if one.estimated} <= OURS


KINDS = {
    "bf16": (bmm, {}, 2),
    "fp32": (bmm, {"dtype": "fp32"}, 2),
    "fp8": (scaled, {}, 3),
    "fp8, row scales": (scaled, {"scales": "row"}, 3),
    "fp8, a bias": (scaled, {"bias": "1d"}, 3),
    "fp8, two dtypes": (scaled, {"dtype": "fp8_e5m2", "weight_dtype": "fp8_e4m3"}, 3),
}
"""Problems of all kinds, with the least number of candidates besides ATen."""
SIZES = {
    bmm: ([1, 2, 13, 16, 17, 33, 64, 65, 197, 4096], [(64, 2048), (2048, 64), (14336, 4096), (13, 7)]),
    scaled: ([1, 2, 16, 17, 33, 64, 65, 512, 8192], [(28672, 4096), (4096, 14336), (16, 32), (48, 4080)]),
}


@pytest.mark.parametrize("name", KINDS)
def test_candidates_of_batches_and_fp8_are_distinct_legal_and_fit_the_matrices(name):
    made, rest, least = KINDS[name]
    rows, columns = SIZES[made]
    for problem in (made(m=m, n=n, k=k, **rest) for m in rows for n, k in columns):
        found = tried(problem)
        assert len(found) == len(set(found)) >= least
        assert not any(config.rejection(problem, H200) for config in found)
        if made is bmm:
            for config in found:
                for block, size in (("block_m", problem.m), ("block_n", problem.n), ("block_k", problem.k)):
                    assert config.values[block] == 16 or config.values[block] < 2 * size
        else:
            assert problem.k < 64 or OURS.isdisjoint(names(found)) == (problem.m > 64)
            mapped = any(config.kernel == "inductor_scaled_tma" for config in found)
            assert mapped == (problem.m >= 33 and "bias" not in rest)


@pytest.mark.parametrize(
    "problem",
    [
        bmm(batch=1), bmm(k=1), bmm(batch=0), bmm(m=0), bmm(dtype="fp64"), bmm(constant_weight=True),
        scaled(constant_weight=True), scaled(m=0), scaled(n=0), scaled(k=16),
    ],
    ids=lambda problem: problem.text,
)  # fmt: skip
def test_where_there_is_no_template_aten_is_alone(problem):
    assert tried(problem, "full") == []


@pytest.mark.parametrize("m", [1, 16, 48])
def test_without_a_fast_accumulation_no_sum_stays_in_the_matrix_unit(m):
    for accum, wanted in ((True, {True, False}), (False, {False})):
        ours = [c.values for c in tried(scaled(m, fast_accum=accum), "quick") if c.kernel == "narrow"]
        grouped = {value["block_n" if value["swap"] else "block_m"] >= 64 and value["warps"] % 4 == 0 for value in ours}
        assert grouped == wanted
    for accum, kernels in (
        (True, OURS),
        (False, {"triton:gemv"}),
    ):  # What another arch does with small tiles is unknown.
        assert names(tried(scaled(1, fast_accum=accum), "quick", L4)) == kernels


@pytest.mark.parametrize(
    ("problem", "device", "reason"),
    [
        (scaled(k=4088), H200, "multiples of 16"),
        (scaled(n=8), H200, "multiples of 16"),
        (scaled(dtype="fp8_e5m2"), H200, "two e5m2"),
        (scaled(bias="1d", out_dtype="fp32"), H200, "a bias of fp32 is not added to fp32"),
        (replace(scaled(), b=Operand("fp8_e4m3", Layout("col-padded", 8))), H200, "multiples of 16 bytes"),
        (scaled(), A100, "sm80 cannot multiply fp8"),
        (scaled(), L4, ""),
        (scaled(16, 4096, 7168, scales="block"), L4, "Hopper"),
        (int4(k=4160), H200, "wants K in steps of 128"),
    ],
)
def test_what_cannot_be_multiplied_is_one_illegal_row(problem, device, reason):
    first, *others = candidates(problem, "full", device)
    assert first.config == ATEN
    assert bool(others) == (not reason)
    assert reason in str(first.rejected or "")
    assert bool(first.rejected) == bool(reason)


@pytest.mark.parametrize("m", [1, 16, 48, 512])
def test_what_is_tried_with_scales_of_blocks(m):
    problem = scaled(m, 4096, 7168, scales="block")
    found = tried(problem)
    assert names(found) == {"triton:scaled_blocks", "cutlass:scaled_blocks"}
    for config in found:
        assert config.rejection(problem, H200) is None
        assert "applies block scales" in str(config.rejection(scaled(m, 4096, 7168), H200))
    ours = [config for config in found if config.backend == "triton"]
    assert 4 <= len(ours) < 25
    assert {"blocks" in config.values for config in ours} == {True, False}
    assert "blocks" not in next(iter(ours)).values
    assert {config.values["block_k"] for config in ours} == {128}
    clusters = [config for config in found if config.backend == "cutlass"]
    assert 3 <= len(clusters) < 20
    for kind in (ours, clusters):
        assert m > 64 or max(config.values["split_k"] for config in kind) > 1
    others = tried(scaled(m, 4096, 7168, fast_accum=True))
    assert all("within the sum" in str(config.rejection(problem, H200)) for config in others)


@pytest.mark.parametrize("flags", [{}, {"group": 32}, {"packing": "tinygemm2", "group": 64}, {"packing": "low-first"},
                                   {"packing": "high-first", "zeros": "uint8", "group": 64}], ids=str)  # fmt: skip
def test_which_kernels_of_int4_are_tried_at_which_sizes(flags):
    for m in (1, 8, 16, 33, 64, 65, 512, 4096):
        for n, k in ((28672, 8192), (4096, 14336), (1032, 4352)):
            for device in (H200, A100):
                found = tried(int4(m, n, k, **flags), device=device)
                others = {"triton:int4_skinny"} if m <= 16 else set()
                others |= {"aten:dequantised"} if "-" not in str(flags) else set()
                if "low-first" in str(flags) and device is H200:
                    others |= {"cutlass:int4"} if m > 16 else set()
                    others |= {"cutlass:int4_stream"} if m <= 32 else set()
                assert names(found) == {"triton:int4", *others}
                assert len(found) >= 4
    assert {config.values["block_m"] for config in from_menu(int4(24, **flags), H200)} == {32}
