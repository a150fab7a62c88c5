"""What our kernels compute with several weights of one activation, in Triton's interpreter on a CPU."""

import importlib.util
from itertools import product

import pytest

torch = pytest.importorskip("torch")

from kit.devices import H200
from kit.gpu import make
from kit.inductor import INTERPRETED, ROOT, run

from gemmdb import Config, Problem
from gemmdb.kernels import triton
from gemmdb.kernels.triton import parts

pytestmark = INTERPRETED
WIDTHS = (64, 32, 96)
KERNELS = [
    make("narrow", block_n=32, block_k=64, split_k=2), make("narrow", block_n=32, block_k=64, swap=1, rows="mask"),
    make("tile", block_m=16, block_n=32, block_k=64), make("gemv", block_n=32, block_k=128),
]  # fmt: skip
INT4 = [
    make("int4", block_n=32, warps=1), make("int4", block_n=32, warps=2, split_k=2, block_m=8),
    make("int4", block_n=32, warps=2, scaled="sums"), make("int4", block_n=32, block_k=64, warps=2, scaled="sums"),
    make("int4", order="memory", block_n=32, warps=1), make("int4", order="memory", block_n=32, block_k=64, warps=1),
    make("int4_skinny", block_n=32),
    make("int4_skinny", activations="shared", next="before", block_n=32),
    make("int4_skinny", lean=1, activations="ahead", block_n=32),
]  # fmt: skip
WEIGHTS = [("tinygemm8", "bf16", "bf16"), ("low-first", "fp16", "uint8"), ("high-first", "fp16", "none")]
"""How int4 weights are packed, the dtype of the activation, and the zero points."""
FORMS = list(product(("", "row", "tensor"), (True, False)))
"""The scales of fp8 operands, empty for fp16; and whether there are biases."""


def text(config: Config, problem: Problem, biased: bool) -> str:
    """The source of a module with the kernel as Inductor renders it, for dense operands of these sizes."""
    import jinja2

    own = problem.int4
    sizes = {f"B{place}" if place else "B": width for place, width in enumerate(WIDTHS)}

    def size(name: str, dim: int) -> str:
        if name not in sizes:
            return str((problem.m, problem.k)[dim])
        if own is not None:
            return str(sizes[name] // (8 if own.inner else 1))
        return str(sizes[name] if dim else problem.k)

    more = ["partials", "counters"] if triton.counts_arrivals(config) else []
    names = triton.names(config, problem) | parts.constants(len(WIDTHS), problem.scaled, biased, problem.scales)
    constants = "".join(f"    {name}: tl.constexpr = {value}\n" for name, value in names.items())
    rendered = (
        jinja2.Environment(undefined=jinja2.StrictUndefined)
        .from_string(triton.source(config.kernel))
        .render(
            **names,
            def_kernel=lambda *args: f"def kernel({', '.join([*args, *more, 'out'])}):\n{constants}",
            size=size,
            stride=lambda name, dim: str({"A": (problem.k, 1), "B": (1, problem.k)}[name][dim]),
            store_output=lambda indices, value, mask, **_: f"tl.store(out + {indices[0]}, {value}, mask={mask})",
        )
    )
    return f"import triton\nimport triton.language as tl\n\n@triton.jit\n{rendered.strip()}\n"


def error(config: Config, kind: str, biased: bool, folder: str) -> float:
    """The largest error, as a share of the largest value. Called in a process whose Triton interprets."""
    dtype = torch.float8_e4m3fn if kind else torch.float16
    op, given = ("scaled_mm", {"scales": kind}) if kind else ("mm", {"dtype": "fp16"})
    # The interpreter does not know how to fill a part of a tile in fp8.
    problem = Problem.gemm(op, m=5, n=sum(WIDTHS), k=256 if kind else 200, **given)
    torch.manual_seed(0)
    a, *weights = (torch.randn(rows, problem.k).to(dtype) for rows in (problem.m, *WIDTHS))
    one = kind == "tensor"
    rows, biases = torch.rand(1 if one else problem.m) + 0.5, [torch.randn(width) for width in WIDTHS]
    scales = [torch.rand(1 if one else width) + 0.5 for width in WIDTHS]
    vectors = [*(scales if kind else []), *(biases if biased else []), *([rows] if kind else [])]
    out = launched(config, problem, text(config, problem, biased), [a, *weights, *vectors], folder)
    wanted = []
    for place, weight in enumerate(weights):
        exact = a.double() @ weight.double().t()
        exact = exact * rows[:, None] * scales[place] if kind else exact
        wanted.append((exact + biases[place] if biased else exact).flatten())
    return float((out - torch.cat(wanted)).abs().max() / torch.cat(wanted).abs().max())


def launched(config: Config, problem: Problem, source: str, tensors: list[torch.Tensor], folder: str) -> torch.Tensor:
    """What the kernel stores."""
    from pathlib import Path

    path = Path(folder, f"unit{len(list(Path(folder).iterdir()))}.py")
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = triton.template(config)
    grid = found.grid(problem.m, problem.n, found.names(config, problem), lambda size, step: -(-size // step))
    out = torch.full((problem.m * problem.n,), float("nan"))
    more = [torch.empty(2**16), torch.zeros(2**10, dtype=torch.int32)] if triton.counts_arrivals(config) else []
    module.kernel[grid](*tensors, *more, out)
    return out


def int4_problem(n: int, packing: str, dtype: str, zeros: str) -> Problem:
    kind = {"weight_dtype": "int4", "group": 64 if zeros == "none" else 128, "zeros": zeros, "packing": packing}
    return Problem.gemm("mixed_mm", m=5, n=n, k=512, dtype=dtype, **kind)


def int4_pairs() -> list[tuple[Config, tuple[str, str, str]]]:
    """Each kernel with each kind of weight that it takes."""
    both = product(INT4, WEIGHTS)
    return [(config, kind) for config, kind in both if config.rejection(int4_problem(192, *kind), H200) is None]


def int4_error(config: Config, packing: str, dtype: str, zeros: str, folder: str) -> float:
    """As `error`, with int4 weights."""
    from kit import ptx  # noqa: F401 - their instructions, and bf16 in products

    from gemmdb.generators.measure.operands import operands
    from gemmdb.inductor.match.ops import dequantised

    whole = int4_problem(sum(WIDTHS), packing, dtype, zeros)
    made = [operands(whole.resized(5, width, whole.k), torch.device("cpu"), width) for width in WIDTHS]
    a = made[0].a
    tensors = [[one for one in (given.b, given.scale, given.zeros) if one is not None] for given in made]
    out = launched(config, whole, text(config, whole, False), [a, *(t for one in tensors for t in one)], folder)
    wanted = [
        (a.double() @ dequantised(given.b, given.scale, given.zeros, whole.int4, a.dtype).double().t()).flatten()
        for given in made
    ]
    return float((out - torch.cat(wanted)).abs().max() / torch.cat(wanted).abs().max())


def found_int4() -> list[float]:
    """The error of each kernel with each kind of weight. In a process of its own, as `kit.ptx` wants it."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return [int4_error(config, *kind, folder) for config, kind in int4_pairs()]


def found() -> list[float]:
    """The error of each kernel in each form."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return [error(config, *form, folder) for config in KERNELS for form in FORMS]


def interpreted(name: str) -> list[float]:
    """What the function of that name returns in a process whose Triton interprets."""
    path = f"{ROOT}:{ROOT / 'tests'}:{ROOT / 'tests' / 'kernels'}"
    program = f"import test_parts_numerics as own; print(json.dumps(own.{name}()))"
    return run(program, {"PYTHONPATH": path, "TRITON_INTERPRET": "1"})


def test_each_int4_weight_gets_its_columns_with_their_scales_and_zero_points() -> None:
    errors, tried = interpreted("found_int4"), [(config.text, *kind) for config, kind in int4_pairs()]
    assert len(errors) == len(tried) == 23
    assert [one for one in zip(tried, errors, strict=True) if not one[1] < 0.02] == []


def test_each_weight_gets_its_columns_scales_and_bias() -> None:
    errors = interpreted("found")
    tried = [(config.text, *form) for config in KERNELS for form in FORMS]
    assert len(errors) == len(tried) == 24
    assert [one for one in zip(tried, errors, strict=True) if not one[1] < 0.003] == []
