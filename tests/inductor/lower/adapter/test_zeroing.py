"""Of the workspace of our kernels, a graph zeroes the counters alone."""

import pytest

torch = pytest.importorskip("torch")

from torch._inductor.codegen.wrapper import PythonWrapperCodegen

import gemmdb.inductor
from gemmdb.inductor.lower.adapter import codegen, emission
from gemmdb.kernels.triton import MAX_COUNTERS

OURS = f"{codegen.WORKSPACE}_0"


@pytest.fixture
def zeroed(clean):
    """Inductor's line that zeroes a buffer, by its name."""
    gemmdb.inductor.enable()

    class Wrapper:
        ending = ""

    return lambda name: PythonWrapperCodegen.make_zero_buffer(Wrapper(), name)


def test_the_partial_sums_are_not_zeroed(zeroed):
    workspace = torch.full((MAX_COUNTERS + 100,), 7, dtype=torch.int32)
    exec(zeroed(OURS), {OURS: workspace})
    assert workspace[:MAX_COUNTERS].eq(0).all()
    assert workspace[MAX_COUNTERS:].eq(7).all()


def test_any_other_buffer_is_zeroed_whole(zeroed):
    buffer = torch.full((MAX_COUNTERS + 100,), 7, dtype=torch.int32)
    exec(zeroed("workspace_0"), {"workspace_0": buffer})
    assert buffer.eq(0).all()


def test_a_trial_finds_the_line_and_leaves_it_out(zeroed):
    code = f"{OURS} = empty_strided_cuda((5, ), (1, ), torch.int32)\n{zeroed(OURS)}\nkernel.run({OURS})\n"
    assert emission._zeroed_before(code) == f"{OURS} = _zeros((5, ), (1, ), torch.int32)\nkernel.run({OURS})\n"


def test_without_gemmdb_the_line_is_torchs(zeroed):
    gemmdb.inductor.disable()
    assert zeroed(OURS) == f"{OURS}.zero_()"
