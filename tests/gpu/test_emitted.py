"""Candidates as the code that Inductor emits: generated, right, captured; and Inductor's own templates served."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import measure

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.kernels.config import ATEN
from gemmdb.table.measurement import EMITTED, Status

pytestmark = pytest.mark.usefixtures("clean")
gemm = Problem.gemm


def template(kernel: str = "inductor_mm", **changes: int) -> Config:
    base = {"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "stages": 3, "warps": 4}
    return Config.of("triton", kernel, **{**base, **changes})


SUM = Config.of("triton", "inductor_sum")
TMA = template("inductor_persistent_tma")
TILE = Config.of(
    "triton", "tile", block_m=16, block_n=64, block_k=64, group_m=8, split_k=1, reduce="none", swap=0, load="pointer",
    dequant="cast", warps=4, stages=3,
)  # fmt: skip
SPLIT = Config.of("triton", "tile", **{**TILE.values, "split_k": 3, "reduce": "kernel"})
FIXUP = Config.of("triton", "tile", **{**TILE.values, "split_k": 3, "reduce": "fixup"})
CASES = [
    *((gemm("mm", m=72, n=1008, k=520, layout=layout), config) for layout in ("nt", "nn", "tn", "tt")
      for config in (template(), TMA)),
    *((gemm("addmm", m=72, n=1008, k=520, bias=bias), config) for bias in ("1d", "full", "column")
      for config in (template(), TMA)),
    *((gemm("mm", m=72, n=1008, k=520, dtype="fp16", fusion="pointwise"), config) for config in (template(), TMA)),
    *((gemm("mm", m=72, n=1024, k=520, fusion=f"pointwise:{words}"), config) for config in (template(), TMA)
      for words in ("math", "math:reads1", "permuted", "reads2:transposed:fp32")),
    (gemm("addmm", m=72, n=1024, k=520, fusion="pointwise:math:kept"), template()),
    (gemm("mm", m=65, n=1001, k=777), template()),
    (gemm("mm", m=72, n=1000, k=520, dtype="fp32", tf32=True), template(block_k=32)),
    (gemm("mm", m=72, n=1000, k=520, dtype="fp32"), template(block_k=32)),
    (gemm("int_mm", m=72, n=1000, k=528), template()),
    (gemm("int_mm", m=72, n=1000, k=528, fusion="scale"), template()),
    *((problem, SUM) for problem in (
        gemm("mm", m=1, n=1001, k=777), gemm("mm", m=1000, n=1, k=4096, layout="nn"), gemm("mm", m=1, n=4096, k=4096,
        fusion="pointwise"), gemm("addmm", m=1, n=1000, k=520), gemm("mm", m=1, n=1000, k=520, dtype="fp32"),
        gemm("mixed_mm", m=1, n=4096, k=14336, fusion="scale"), gemm("mixed_mm", m=1, n=1000, k=520, dtype="fp16",
        weight_dtype="uint8"))),
]  # fmt: skip


STEP = """
import sys
from gemmdb import Config, Problem
from gemmdb.generators.measure.cuda import emitted
from gemmdb.generators.measure.cuda.backend import CudaBackend
from gemmdb.generators.measure.cuda.artifacts import Triton
from gemmdb.generators.measure.cuda import elementwise

CudaBackend()
problem, config = Problem.gemm("addmm", m=72, n=1000, k=520, fusion="pointwise:math"), Config.parse(sys.argv[2])
if sys.argv[1] == "write":
    Triton(elementwise.flush().unit).build(90)  # A process of the compile pool has asked Triton for ptxas by then.
    emitted.write(problem, config, 90)
else:
    emitted.load(problem, config)
"""


def test_what_follows_atens_gemm_is_the_code_of_default_mode() -> None:
    from gemmdb.generators.measure.cuda import bench, calls, emitted

    problem = gemm("addmm", m=1024, n=3072, k=768, bias="1d", fusion="pointwise:math")
    copies = bench.Bench.of(problem).copies[:1]
    emitted.begin()
    stand_in, _, detail = calls.reference(problem, copies)
    assert (stand_in(0), detail) == (None, "")
    emitted.write(problem, ATEN, 90)
    default, _, detail = calls.reference(problem, copies)
    assert detail == EMITTED
    torch.testing.assert_close(default(0), copies[0]["out"], rtol=2e-2, atol=2e-2)


def test_loading_compiles_nothing_that_another_process_has_compiled(tmp_path: Path) -> None:
    """Each kernel compiled twice took three seconds of a build's GPU."""
    cache = {"TRITON_CACHE_DIR": str(tmp_path / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    found = []
    for step in ("write", "load"):
        subprocess.run([sys.executable, "-c", STEP, step, TILE.text], env={**os.environ, **cache}, check=True)
        found.append({path.name for path in (tmp_path / "triton").iterdir()})
    assert found[0] == found[1]


def measured(problem: Problem, config: Config) -> None:
    """The generator's way: the code is generated as in the compile pool, loaded, checked, captured and timed."""
    from gemmdb.generators.measure.cuda.artifacts import Emission

    built = Emission(problem, config).build(90)
    assert built.failure == ""
    measure(problem, [config])


@pytest.mark.parametrize(("problem", "config"), CASES, ids=str)
def test_inductors_templates_are_measured(problem: Problem, config: Config) -> None:
    measured(problem, config)


@pytest.mark.parametrize("config", [TILE, SPLIT, FIXUP], ids=lambda config: config.text)
@pytest.mark.parametrize(
    "problem",
    [gemm("mixed_mm", m=8, n=1008, k=1040, fusion="scale"), gemm("addmm", m=8, n=1000, k=776),
     gemm("int_mm", m=24, n=1008, k=528, fusion="scale"),
     *(gemm("mm", m=24, n=1024, k=528, fusion=word)
       for word in ("pointwise:math", "pointwise:math:reads1", "pointwise:kept", "pointwise:permuted:fp32"))],
    ids=lambda problem: problem.text,
)  # fmt: skip
def test_our_kernels_are_measured_as_emitted_code(problem: Problem, config: Config) -> None:
    from gemmdb.generators.measure.cuda.artifacts import Emitted

    measured(problem, Emitted.code_of(config))


@pytest.mark.parametrize(("problem", "config"), CASES, ids=str)
def test_inductors_templates_are_served_as_one_choice(problem: Problem, config: Config) -> None:
    from torch._inductor.utils import run_and_get_code

    from gemmdb.generators.measure.correctness import poison, reference
    from gemmdb.generators.measure.operands import operands
    from gemmdb.generators.measure.program import Product, as_product, set_numerics
    from gemmdb.generators.measure.tolerance import tolerance

    set_numerics(problem)
    device = torch.device("cuda")
    made = operands(problem, device, 1)
    product = Product(problem, made)
    poison(problem, device)
    with gemmdb.inductor.force(config):
        found, codes = run_and_get_code(torch.compile(product), *product.inputs)
    stats = gemmdb.inductor.stats()
    assert [entry["config"] for entry in stats["products"]] == [config.text], stats["products"]
    assert (stats["benchmarked"], stats["errors"]) == (0, [])
    # One kernel, with the epilogue, in whatever order that is stored. The multiply-and-sum is no template.
    assert codes[0].count("@triton_heuristics.") == 1
    assert codes[0].count("@triton_heuristics.template(") == int(config != SUM)
    assert "extern_kernels." not in codes[0].partition("async_compile.wait")[2]
    first = found[0] if isinstance(found, tuple) else found
    error = reference(problem, made).error(as_product(problem, first))
    assert error <= tolerance(problem), error


def test_alpha_and_beta_reach_the_template() -> None:
    x, w = torch.randn(72, 512, device="cuda").half(), torch.randn(512, 256, device="cuda").half() / 16
    bias = torch.randn(256, device="cuda").half()
    with gemmdb.inductor.force(template()):
        found = torch.compile(lambda b, x, w: torch.addmm(b, x, w, alpha=2.0, beta=0.4))(bias, x, w)
    wanted = torch.addmm(bias.double(), x.double(), w.double(), alpha=2.0, beta=0.4)
    assert (found.double() - wanted).abs().max() <= 0.01 * wanted.abs().max()
    (entry,) = gemmdb.inductor.stats()["products"]
    assert entry["config"] == template().text


def test_a_process_that_generates_code_allocates_nothing_on_the_gpu() -> None:
    """It generates code on operands without memory and never loads a kernel, so it disturbs no timing."""
    from gemmdb.generators.measure.cuda.artifacts import Emission
    from gemmdb.processes.pool import IsolatedProcess

    process = IsolatedProcess()
    try:
        assert process.call(120, Emission(gemm("mm", m=72, n=1016, k=520), TMA).build, 90).value.failure == ""
        used = process.call(60, eval, "__import__('torch').cuda.max_memory_reserved()")
    finally:
        process.close()
    # Inductor's own passes make a few little tensors once.
    assert used.value <= 2**21


def test_a_build_confirms_winners_as_emitted_code(tmp_path: Path) -> None:
    from gemmdb.generators.build.build import BuildRequest, build
    from gemmdb.table.reader import Table

    shapes = tmp_path / "shapes.json"
    shapes.write_text('[{"op": "mixed_mm", "m": 8, "n": 4096, "k": 4096, "fusion": "scale"}]')
    out = tmp_path / "table.db"
    build(BuildRequest(arch="native", shapes=str(shapes), out=out))
    table = Table.open(out)
    try:
        rows = list(table.measurements())
    finally:
        table.close()
    emitted = [row for row in rows if row.detail == EMITTED]
    assert emitted
    for row in emitted:
        if row.config == ATEN or row.config.spec.emitted:
            continue  # Both are timed as emitted code from the beginning.
        alone = [r for r in rows if r.config == row.config and r.status is Status.OK and r.detail == ""]
        assert alone, "it was timed as a kernel by itself first"
