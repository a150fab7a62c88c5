"""What a process compiles: the program of a problem is, for Inductor, that very problem, and takes the config given."""

import os
import tempfile
from dataclasses import replace

import pytest
import torch

from gemmdb.generators.measure.cpu import session
from gemmdb.generators.measure.cpu.measurer import machine
from gemmdb.generators.measure.cpu.space import AUTO, template
from gemmdb.generators.measure.operands import operands
from gemmdb.generators.measure.program import Product
from gemmdb.generators.measure.tolerance import acceptable
from gemmdb.kernels.config import ATEN, Config
from gemmdb.kernels.default_mode import symbolic_form
from gemmdb.key.layout import Layout
from gemmdb.key.operands import Numerics, Operand
from gemmdb.key.problem import Problem
from gemmdb.processes.pool import IsolatedProcess, Stopped
from gemmdb.table.measurement import Protocol, Status

pytestmark = pytest.mark.slow
SIZES = {"m": 24, "n": 48, "k": 64}
GEMM = Problem.gemm
TF32 = GEMM("mm", **SIZES, dtype="fp32", tf32=True, constant_weight=True)
SEEN = [
    GEMM("mm", **SIZES, dtype="fp32", layout="tn"),
    GEMM("mm", **SIZES, dtype="fp16", fusion="pointwise", constant_weight=True),
    *([TF32] if torch.cpu._is_amx_fp16_supported() else []),
    replace(GEMM("mm", **SIZES, dtype="fp32"), numerics=Numerics(deterministic=True)),
    replace(GEMM("mm", **SIZES, dtype="fp32"), a=Operand("fp32", Layout("row-padded", 2))),
    replace(GEMM("mm", **SIZES, dtype="fp32"), b=Operand("fp32", Layout("col", 1))),
    GEMM("mm", m=1, n=48, k=64, dtype="bf16", constant_weight=True),
    GEMM("addmm", **SIZES, dtype="fp32", bias="column"),
    replace(GEMM("addmm", **SIZES, dtype="bf16", bias="full", constant_weight=True), scalars="general"),
    GEMM("int_mm", **SIZES),
    GEMM("int_mm", **SIZES, dtype="uint8", fusion="scale", constant_weight=True),
    GEMM("mixed_mm", **SIZES, dtype="fp16", weight_dtype="uint8", fusion="scale"),
    GEMM("mixed_mm", **SIZES, dtype="bf16", bias="1d"),
    GEMM("mixed_mm", **SIZES, dtype="bf16", bias="1d", fusion="scale", constant_weight=True),
    GEMM("bmm", batch=3, **SIZES, dtype="fp32"),
    GEMM("bmm", batch=3, **SIZES, layout="tn", dtype="bf16", fusion="pointwise"),
    GEMM("bmm", batch=3, **SIZES | {"m": 1}, dtype="bf16", constant_weight=True),
    replace(GEMM("bmm", batch=3, **SIZES), b=Operand("bf16", Layout("col", 8, "broadcast"))),
    replace(GEMM("bmm", batch=3, **SIZES), a=Operand("bf16", Layout("row-padded", 8, "interleaved"))),
    replace(GEMM("bmm", batch=3, **SIZES), b=Operand("bf16", Layout("col", 2))),
    *(GEMM("scaled_mm", m=m, n=48, k=64, scales=scales, fast_accum=fast, constant_weight=fast)
      for m, scales, fast in ((1, "tensor", False), (17, "tensor", True), (17, "row", False), (1, "row", True))),
    GEMM("scaled_mm", m=17, n=48, k=64, dtype="fp8_e5m2", weight_dtype="fp8_e4m3", bias="1d", fusion="pointwise"),
    GEMM("scaled_mm", m=17, n=48, k=64, out_dtype="fp32", scales="row"),
    replace(GEMM("scaled_mm", m=17, n=48, k=64, scales="row", bias="1d", constant_weight=True),
            a=Operand("fp8_e4m3", Layout("row-padded", 8)), b=Operand("fp8_e5m2", Layout("col-padded", 16))),
    GEMM("mm", **SIZES, dtype="bf16", fusion="pointwise:math", constant_weight=True),
    GEMM("addmm", **SIZES, dtype="bf16", fusion="pointwise:reads1", constant_weight=True),
    GEMM("addmm", **SIZES, dtype="fp32", fusion="pointwise:math:reads1", constant_weight=True),
    GEMM("mm", **SIZES, dtype="bf16", fusion="pointwise:math:reads1"),
    GEMM("mm", **SIZES, dtype="fp32", fusion="pointwise:math:reads2:kept:transposed:bf16"),
    GEMM("addmm", **SIZES, dtype="bf16", fusion="pointwise:permuted:fp32"),
    GEMM("mixed_mm", **SIZES, fusion="pointwise:math"),
    GEMM("bmm", batch=3, **SIZES, dtype="bf16", fusion="pointwise:permuted"),
    GEMM("bmm", batch=3, **SIZES, dtype="fp32", fusion="pointwise:math:reads1:kept:transposed"),
    GEMM("scaled_mm", m=17, n=48, k=64, fusion="pointwise:math:reads1"),
]  # fmt: skip


@pytest.fixture(scope="module")
def process(vector_units):
    made = IsolatedProcess({"OMP_NUM_THREADS": "2"})
    yield made
    made.close()


@pytest.fixture
def numerics():
    """Restores what a measurement sets in this process."""
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(False)
    torch._dynamo.reset()


@pytest.mark.parametrize("problem", SEEN, ids=lambda problem: problem.text)
def test_inductor_sees_the_problem_itself(process, problem):
    reply = process.call(120, session.load, problem, ATEN, 2)
    assert reply.status is Status.OK, reply.detail
    assert acceptable(problem, reply.value, reply.value)


def test_a_problem_that_inductor_sees_differently_is_told(process):
    cast = GEMM("mm", **SIZES, dtype="fp32", out_dtype="bf16")
    reply = process.call(120, session.load, cast, ATEN, 2)
    assert reply.status is Status.ERROR
    assert "Inductor sees another problem: mm m=24" in reply.detail


def test_a_config_that_inductor_does_not_take_is_told(process):
    problem = GEMM("mm", **SIZES, dtype="fp32", constant_weight=True)
    reply = process.call(120, session.load, problem, template((1, 3, 1), AUTO), 2)
    assert reply.status is Status.ERROR
    assert "3" in reply.detail


@pytest.mark.skipif(not torch._C.has_mkl, reason="this torch has no MKL: default mode runs the same in both cases")
@pytest.mark.parametrize(
    "problem",
    [
        GEMM("mm", **SIZES, dtype="fp32", constant_weight=True),
        GEMM("mm", m=64, n=64, k=64, dtype="fp32", fusion="pointwise", constant_weight=True),
        GEMM("addmm", **SIZES, dtype="fp32", fusion="pointwise:math:reads1", constant_weight=True),
        GEMM("addmm", m=2, n=48, k=64, dtype="fp32", constant_weight=True),
    ],
    ids=lambda problem: problem.text,
)
def test_the_form_of_aten_with_symbolic_rows_is_what_default_mode_runs_there(problem, numerics):
    """MKL packs a weight for one number of rows."""
    product, form = Product(problem, operands(problem, session.CPU, 1)), symbolic_form(problem)
    for config, operator in ((ATEN, "mkl::_mkl_linear"), (form, "mkldnn::_linear_pointwise")):
        run = session.compile_candidate(problem, product, config)
        with torch.profiler.profile() as profile:
            run(product.inputs)
        assert operator in {event.key for event in profile.key_averages()}
    assert session.load(problem, form, torch.get_num_threads()) < 1e-5


def test_a_round_times_aten_and_the_candidates(process):
    problem = GEMM("mixed_mm", **SIZES, fusion="scale")
    packed = Config.of("aten", "int8pack_mm")
    for config in (ATEN, packed):
        assert process.call(120, session.load, problem, config, 2).status is Status.OK
    for state in ("cold", "hot"):
        reply = process.call(120, session.time_round, problem, [packed], Protocol("host", state, 1, 6), 6, 60.0)
        assert {config: len(samples) for config, samples in reply.value.items()} == {ATEN: 6, packed: 6}
        assert all(0 < sample < 1e6 for samples in reply.value.values() for sample in samples)
    short = process.call(120, session.time_round, problem, [packed], Protocol("host", "cold", 1, 50), 50, 0.0)
    assert {len(samples) for samples in short.value.values()} == {3}


def test_a_machine_is_not_waited_for_after_giving_up():
    with machine(exclusive=True), pytest.raises(Stopped), machine(exclusive=False, given_up=lambda: True):
        pass
    with machine(exclusive=False), machine(exclusive=False):
        alone = machine(exclusive=True, given_up=lambda: True)
        with pytest.raises(Stopped):
            alone.__enter__()


def test_a_lock_that_another_user_put_into_the_folder_of_temporary_files_is_not_used(tmp_path, monkeypatch):
    shared, own = tmp_path / "shared", tmp_path / "own"
    shared.mkdir()
    (shared / f"gemmdb-{os.getuid()}.lock").symlink_to(tmp_path / "outside")
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    monkeypatch.setenv("XDG_DATA_HOME", str(own))
    with machine(exclusive=True):
        assert [path.name for path in own.rglob("*.lock")] == [f"gemmdb-{os.getuid()}.lock"]
    assert not (tmp_path / "outside").exists()
