"""Programmatic dependent launch as a parameter of configs: what it changes, and where it is legal."""

import pytest
from kit.devices import A100, H200, L4
from kit.gpu import make

from gemmdb.errors import InputError
from gemmdb.generators.measure.cuda.render import plan
from gemmdb.kernels import triton
from gemmdb.kernels.config import Config
from gemmdb.kernels.triton import dependent
from gemmdb.key.problem import Problem

gemm = Problem.gemm
DECODE = gemm("mixed_mm", m=1, n=4096, k=4096, fusion="scale")
KERNELS = ("gemv", "narrow", "tile")


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_config_may_leave_the_parameter_out(kernel) -> None:
    plain, early = make(kernel), make(kernel, pdl=1)
    assert "pdl" not in plain.text
    assert " pdl=1 " in early.text
    assert Config.parse(early.text) == early != plain
    for wrong in (0, 3, "1", True):
        with pytest.raises(InputError, match="pdl="):
            make(kernel, pdl=wrong)
    with pytest.raises(InputError, match="takes the parameters"):
        make(kernel, other=1)


def test_a_kernel_without_the_parameter_refuses_it() -> None:
    with pytest.raises(InputError, match="takes the parameters"):
        make("persistent", pdl=1)
    assert dependent.ways(make("persistent")) == []


def test_the_ways_of_a_config() -> None:
    assert dependent.ways(make("narrow")) == [make("narrow", pdl=1), make("narrow", pdl=2)]
    assert dependent.ways(make("narrow", pdl=1)) == []


@pytest.mark.parametrize(
    ("problem", "config", "device", "reason"),
    [
        (DECODE, make("gemv", pdl=2), H200, None),
        (DECODE, make("narrow", pdl=2), H200, None),
        (DECODE, make("tile", pdl=1), H200, None),
        (DECODE, make("gemv", pdl=1), A100, "sm80 has no programmatic dependent launch"),
        (DECODE, make("tile", pdl=1), L4, "sm89 has no programmatic dependent launch"),
        (DECODE, make("gemv"), A100, None),
        (gemm("mm", m=16, n=512, k=512), make("tile", pdl=1, load="tma"), H200, "the kernel before may still read"),
        (gemm("mm", m=16, n=512, k=512, layout="nn"), make("tile", pdl=1), H200, None),
        (gemm("mm", m=16, n=512, k=512, layout="nn"), make("tile", pdl=2), H200, "its K runs along memory"),
        (gemm("mm", m=16, n=512, k=512, layout="nn"), make("narrow", pdl=2), H200, "its K runs along memory"),
        (gemm("mm", m=16, n=512, k=7), make("narrow", pdl=2), H200, "pieces of 16 bytes"),
        (gemm("mm", m=16, n=512, k=8), make("narrow", pdl=2), H200, None),
    ],
)
def test_where_it_is_legal(problem, config, device, reason) -> None:
    found = config.rejection(problem, device)
    assert reason in str(found) if reason else found is None


def test_a_symbolic_depth_is_not_asked_for_in_advance() -> None:
    problem = gemm("mm", m=16, n=512, k=512)
    assert "fixed K" in str(make("tile", pdl=2).rejection(problem, H200, {"k": (1, None)}))
    assert make("tile", pdl=1).rejection(problem, H200, {"k": (1, None)}) is None


@pytest.mark.parametrize("k", [8, 16, 100, 777, 1000, 4096, 14336])
@pytest.mark.parametrize("dtype", ["int8", "bf16"])
@pytest.mark.parametrize("config", [make("gemv", pdl=2), make("gemv", pdl=2, block_n=1), make("narrow", pdl=2, warps=1),
                                    make("narrow", pdl=2, block_n=256), make("tile", pdl=2, warps=16)])  # fmt: skip
def test_what_is_asked_for_lies_within_a_column(config, dtype, k) -> None:
    op = "mixed_mm" if dtype == "int8" else "mm"
    problem = gemm(op, m=1, n=4096, k=k)
    if config.rejection(problem, H200):
        return
    found = dependent.constants(config, problem)
    size, columns = (1 if dtype == "int8" else 2), int(config.values["block_n"])
    assert found["PIECE"] * size == found["PIECE_BYTES"]
    assert found["PIECE_BYTES"] % 16 == 0
    assert found["PIECES"] & (found["PIECES"] - 1) == 0
    asked = found["PIECES"] * found["PIECE"]
    assert 0 < asked <= k
    assert asked * size * columns <= max(dependent.AHEAD_BYTES, 16 * columns)
    assert 2 * asked > k or asked * size * columns > dependent.AHEAD_BYTES // 2


@pytest.mark.parametrize("kernel", KERNELS)
def test_nothing_reads_memory_before_the_wait(kernel) -> None:
    """Also the scale, which is otherwise read before the loop."""
    for changes in ({}, {"split_k": 2} | ({"reduce": "fixup"} if kernel == "tile" else {})):
        if kernel == "gemv" and changes:
            continue
        plain = plan(DECODE, make(kernel, **changes)).launches[0].unit
        early = plan(DECODE, make(kernel, pdl=2, **changes)).launches[0].unit
        assert (plain.early, early.early) == (False, True)
        assert "gdc" not in plain.source
        before, _, after = early.source.partition("tl.extra.cuda.gdc_wait()")
        assert "cp.async.bulk.prefetch.L2" in before
        assert not any(word in before for word in ("tl.load(", "tl.store(", "atomic"))
        assert after.lstrip().startswith("tl.extra.cuda.gdc_launch_dependents()")
        assert "tl.load(" in after


def test_the_source_of_kernels_that_begin_as_always_has_not_changed() -> None:
    for kernel in (*KERNELS, "persistent"):
        assert triton.digest(kernel) in make(kernel).spec.equivalent.values()
