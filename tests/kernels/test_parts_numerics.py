"""What our kernels compute with several weights of one activation, in Triton's interpreter on a CPU."""

import importlib.util
from itertools import product

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import make  # noqa: E402
from kit.inductor import ROOT, run  # noqa: E402

from gemmdb import Config, Problem  # noqa: E402
from gemmdb.kernels import triton  # noqa: E402
from gemmdb.kernels.triton import parts  # noqa: E402

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
WIDTHS = (64, 32, 96)
KERNELS = [
    make("narrow", block_n=32, block_k=64, split_k=2), make("narrow", block_n=32, block_k=64, swap=1, rows="mask"),
    make("tile", block_m=16, block_n=32, block_k=64), make("gemv", block_n=32, block_k=128),
]  # fmt: skip
FORMS = list(product(("", "row", "tensor"), (True, False)))
"""The scales of fp8 operands, empty for fp16; and whether there are biases."""


def text(config: Config, problem: Problem, biased: bool) -> str:
    """The source of a module with the kernel as Inductor renders it, for dense operands of these sizes."""
    import jinja2

    sizes = {f"B{place}" if place else "B": width for place, width in enumerate(WIDTHS)}
    more = ["partials", "counters"] if triton.counts_arrivals(config) else []
    names = triton.names(config, problem) | parts.constants(len(WIDTHS), problem.scaled, biased, problem.scales)
    constants = "".join(f"    {name}: tl.constexpr = {value}\n" for name, value in names.items())
    rendered = (
        jinja2.Environment(undefined=jinja2.StrictUndefined)
        .from_string(triton.source(config.kernel))
        .render(
            **names,
            def_kernel=lambda *args: f"def kernel({', '.join([*args, *more, 'out'])}):\n{constants}",
            size=lambda name, dim: str(sizes[name] if name in sizes and dim else (problem.m, problem.k)[dim]),
            stride=lambda name, dim: str({"A": (problem.k, 1), "B": (1, problem.k)}[name][dim]),
            store_output=lambda indices, value, mask, **_: f"tl.store(out + {indices[0]}, {value}, mask={mask})",
        )
    )
    return f"import triton\nimport triton.language as tl\n\n@triton.jit\n{rendered.strip()}\n"


def error(config: Config, kind: str, biased: bool, folder: str) -> float:
    """The largest error, as a share of the largest value. Called in a process whose Triton interprets."""
    from pathlib import Path

    dtype = torch.float8_e4m3fn if kind else torch.float16
    op, given = ("scaled_mm", {"scales": kind}) if kind else ("mm", {"dtype": "fp16"})
    # The interpreter does not know how to fill a part of a tile in fp8.
    problem = Problem.gemm(op, m=5, n=sum(WIDTHS), k=256 if kind else 200, **given)
    path = Path(folder, "unit.py")
    path.write_text(text(config, problem, biased))
    spec = importlib.util.spec_from_file_location("unit", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    a, *weights = (torch.randn(rows, problem.k).to(dtype) for rows in (problem.m, *WIDTHS))
    one = kind == "tensor"
    rows, biases = torch.rand(1 if one else problem.m) + 0.5, [torch.randn(width) for width in WIDTHS]
    scales = [torch.rand(1 if one else width) + 0.5 for width in WIDTHS]
    vectors = [*(scales if kind else []), *(biases if biased else []), *([rows] if kind else [])]
    found = triton.template(config)
    grid = found.grid(problem.m, problem.n, found.names(config, problem), lambda size, step: -(-size // step))
    out = torch.full((problem.m * problem.n,), float("nan"))
    more = [torch.empty(2**16), torch.zeros(2**10, dtype=torch.int32)] if triton.counts_arrivals(config) else []
    module.kernel[grid](a, *weights, *vectors, *more, out)
    wanted = []
    for place, weight in enumerate(weights):
        exact = a.double() @ weight.double().t()
        exact = exact * rows[:, None] * scales[place] if kind else exact
        wanted.append((exact + biases[place] if biased else exact).flatten())
    return float((out - torch.cat(wanted)).abs().max() / torch.cat(wanted).abs().max())


def found() -> list[float]:
    """The error of each kernel in each form."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return [error(config, *form, folder) for config in KERNELS for form in FORMS]


def test_each_weight_gets_its_columns_scales_and_bias() -> None:
    path = f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests' / 'kernels'}"
    program = "from test_parts_numerics import found; print(json.dumps(found()))"
    errors = run(program, {"PYTHONPATH": path, "TRITON_INTERPRET": "1"})
    tried = [(config.text, *form) for config in KERNELS for form in FORMS]
    assert len(errors) == len(tried) == 24
    assert [one for one in zip(tried, errors, strict=True) if not one[1] < 0.003] == []
