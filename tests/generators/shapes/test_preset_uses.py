"""What the GPU presets hold, said apart from how they are derived: families, splits, M, layouts, dtypes and biases.

`h200` holds each use at some M, `llm-dense` the language models at all; `vision`, `grid` and `odd` hold the rest.
"""

from collections.abc import Sequence

import pytest
from kit.presets import preset

from gemmdb.generators.shapes import loading
from gemmdb.generators.shapes.architectures import ARCHITECTURES, ENCODERS, GPT2
from gemmdb.generators.shapes.strata import affordable
from gemmdb.key import representatives
from gemmdb.key.problem import Problem

PRECISIONS = ["bf16", "fp16", "fp32", "tf32"]
LAYOUTS = ["nt", "nn", "tn"]
BIASES = {"nt": {"1d", "full", "column"}, "nn": {"1d", "full", "column"}, "tn": {"full"}}
"""Of an addmm; what a weight's gradient is added to is full."""
STEPS = {*range(1, 17), *(2**power for power in range(15)), *(3 * 2**power for power in range(13))}
"""M of 1 to 16: all; then the powers of two and 1.5 times these, to 16384."""
LARGE = [name for name, model in ARCHITECTURES.items() if model.hidden >= 5120 or name.startswith("mixtral")]
PUBLISHED = {
    "llama-2-7b": (4096, 4096, 4096, 11008, 32000), "llama-2-70b": (8192, 8192, 1024, 28672, 32000),
    "llama-3-8b": (4096, 4096, 1024, 14336, 128256), "llama-3-70b": (8192, 8192, 1024, 28672, 128256),
    "llama-3-405b": (16384, 16384, 1024, 53248, 128256), "mistral-7b": (4096, 4096, 1024, 14336, 32000),
    "mixtral-8x7b": (4096, 4096, 1024, 14336, 32000), "mixtral-8x22b": (6144, 6144, 1024, 16384, 32768),
    "qwen2-7b": (3584, 3584, 512, 18944, 152064), "qwen2-72b": (8192, 8192, 1024, 29568, 152064),
    "qwen3-8b": (4096, 4096, 1024, 12288, 151936), "qwen3-14b": (5120, 5120, 1024, 17408, 151936),
    "qwen3-32b": (5120, 8192, 1024, 25600, 151936),
}  # fmt: skip
"""Hidden size, width of the query and of the key heads, of a feed-forward branch, vocabulary."""


@pytest.fixture(scope="module")
def dense() -> Sequence[Problem]:
    return preset("llm-dense")


@pytest.fixture(scope="module")
def shipped() -> Sequence[Problem]:
    return preset("h200")


def precision(problem: Problem) -> str:
    """The dtype of the activation; `tf32` where fp32 may be multiplied so."""
    return "tf32" if problem.numerics.fp32 == "tf32" else problem.a.dtype


def layout(problem: Problem) -> str:
    """`nt`, `nn` or `tn`, as in a shapes file."""
    return ("t" if problem.a.layout.order == "col" else "n") + ("t" if problem.b.layout.order == "col" else "n")


def of_split(name: str, parts: int) -> list[tuple[int, int]]:
    """(N, K) of QKV, attention output, gate or up, both, down and LM head of a model on one of `parts` GPUs.

    There is at least one key head, of 128 columns or all there are, on each GPU.
    """
    model = ARCHITECTURES[name]
    key = max(model.key // parts, min(model.key, 128))
    query, feed, hidden = model.query // parts, model.feed // parts, model.hidden
    pairs = [(query + 2 * key, hidden), (hidden, query), (feed, hidden), (2 * feed, hidden), (hidden, feed)]
    return pairs + ([(model.vocabulary // parts, hidden)] if model.vocabulary % parts == 0 else [])


def test_the_families_have_their_published_dimensions() -> None:
    for name, dimensions in PUBLISHED.items():
        model = ARCHITECTURES[name]
        assert (model.hidden, model.query, model.key, model.feed, model.vocabulary) == dimensions
    assert set(GPT2) == {"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"}
    assert {name.split("-")[0] for name in ENCODERS} == {"vit", "clip", "bert"}


@pytest.mark.parametrize("name", LARGE)
def test_the_large_models_are_split_over_1_2_4_and_8_gpus(name: str) -> None:
    assert ARCHITECTURES[name].splits == (1, 2, 4, 8)


@pytest.mark.parametrize("op", ["mm", "mixed_mm", "int_mm"])
def test_llm_dense_every_projection_of_every_split_at_every_m(dense: Sequence[Problem], op: str) -> None:
    found: dict[tuple[int, int], set[int]] = {}
    for p in dense:
        if p.op == op and layout(p) == "nt":
            found.setdefault((p.n, p.k), set()).add(p.m)
    steps = {m for m in STEPS if m > 16 or op != "int_mm"}
    for name, model in ARCHITECTURES.items():
        for parts in model.splits:
            for pair in of_split(name, parts):
                assert found.get(pair, set()) >= steps, (name, parts, pair)
    assert {(32000, 8192), (4000, 8192), (3584, 4096), (26624, 16384), (16384, 13312)} <= set(found)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("order", LAYOUTS)
@pytest.mark.parametrize("op", ["mm", "addmm"])
def test_llm_dense_every_layout_in_every_precision(dense: Sequence[Problem], op: str, order: str, dtype: str) -> None:
    found = [p for p in dense if (p.op, layout(p), precision(p)) == (op, order, dtype)]
    assert {p.bias.kind for p in found if p.bias} == (BIASES[order] if op == "addmm" else set())
    if order == "nt":
        assert {p.m for p in found} >= STEPS
    if order == "tn":
        assert {p.k for p in found} == {512, 2048, 8192}


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_squares_grids_odd_sizes_and_encoders_in_every_precision(dtype: str) -> None:
    def kept(name: str, op: str) -> list[Problem]:
        return [p for p in preset(name) if p.op == op and precision(p) == dtype]

    for op in ("mm", "addmm"):
        assert {p.m for p in kept("grid", op) if p.m == p.n == p.k} == {2**power for power in range(7, 15)}
        assert {1, 7, 17, 257, 1009} <= {p.m for p in kept("odd", op) if p.n % 8 and p.k % 8}
        for hidden, tokens in ENCODERS.values():
            assert {tokens, 64 * tokens} <= {p.m for p in kept("vision", op) if p.k == hidden}


def test_the_log_grid_reaches_16384_rows() -> None:
    problems = preset("grid")
    for op in ("mm", "mixed_mm"):
        assert {4**power for power in range(8)} <= {p.m for p in problems if p.op == op and (p.n, p.k) == (6144, 256)}


@pytest.mark.parametrize("name", [name for name in loading.presets() if not name.startswith("cpu")])
def test_a_bias_in_fp32_that_something_elementwise_follows_is_no_addmm(name: str) -> None:
    # On a GPU Inductor adds it in what follows, and asks for an mm. In half precision it asks for the addmm.
    found = [p for p in preset(name) if p.op == "addmm" and p.epilogue and not p.epilogue.kept]
    assert {p.a.dtype for p in found} <= {"bf16", "fp16"}


def test_layers_of_encoders_end_in_their_gelu():
    problems = preset("vision")
    wide = {(p.op, p.a.dtype) for p in problems if p.fusion == "pointwise:math"}
    assert wide == {("addmm", "bf16"), ("addmm", "fp16"), ("mm", "fp32")}


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("op", ["mm", "mixed_mm", "int_mm"])
def test_h200_every_projection_of_every_split(shipped: Sequence[Problem], op: str, name: str) -> None:
    there = {(p.n, p.k) for p in shipped if p.op == op}
    for parts in ARCHITECTURES[name].splits:
        for n, k in of_split(name, parts):
            least = Problem.gemm(op, m=32, n=n, k=k)
            assert (n, k) in there or not affordable(least), (parts, n, k)


@pytest.mark.parametrize("name", GPT2)
def test_h200_every_layer_of_gpt2(shipped: Sequence[Problem], name: str) -> None:
    pairs, vocabulary = set(GPT2[name].pairs()), GPT2[name].vocabulary
    biased = {(p.n, p.k) for p in shipped if p.op == "addmm"}
    assert {pair for pair in pairs if pair[0] != vocabulary} <= biased
    assert pairs <= {(p.n, p.k) for p in shipped if p.op == "mm"}


@pytest.mark.parametrize("name", ENCODERS)
def test_h200_every_layer_of_the_encoders(shipped: Sequence[Problem], name: str) -> None:
    hidden, tokens = ENCODERS[name]
    for n, k in ((3 * hidden, hidden), (hidden, hidden), (4 * hidden, hidden), (hidden, 4 * hidden)):
        assert any((p.n, p.k) == (n, k) and p.m % tokens == 0 for p in shipped), (n, k)


@pytest.mark.parametrize("op", ["mm", "addmm", "mixed_mm", "int_mm"])
def test_h200_every_step_of_m(shipped: Sequence[Problem], op: str) -> None:
    there = {p.m for p in shipped if p.op == op}
    assert there >= {m for m in STEPS if m > 16 or op != "int_mm"}


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("order", LAYOUTS)
@pytest.mark.parametrize("op", ["mm", "addmm"])
def test_h200_every_layout_in_every_precision(shipped: Sequence[Problem], op: str, order: str, dtype: str) -> None:
    found = [p for p in shipped if p.op == op and layout(p) == order and precision(p) == dtype]
    assert len(found) >= 6
    assert {p.bias.kind for p in found if p.bias} == (BIASES[order] if op == "addmm" else set())
    assert len({(p.n, p.k) for p in found}) >= 5


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("op", ["mm", "addmm", "mixed_mm"])
def test_h200_squares_and_odd_sizes_in_every_precision(shipped: Sequence[Problem], op: str, dtype: str) -> None:
    found = [p for p in shipped if p.op == op and precision(p) == dtype]
    if op != "mixed_mm" or dtype in ("bf16", "fp16"):
        assert sum(p.m == p.n == p.k for p in found) >= 3
        assert any(p.n % 8 and p.k % 8 for p in found)


def test_h200_holds_every_affordable_mm_square_of_a_power_of_two(shipped: Sequence[Problem]) -> None:
    known = set(shipped)
    for side in (2**power for power in range(7, 15)):
        for dtype in ({}, {"dtype": "fp16"}, {"dtype": "fp32"}, {"dtype": "fp32", "tf32": True}):
            square = Problem.gemm("mm", m=side, n=side, k=side, **dtype)
            assert square in known or not affordable(square)


def test_epilogues_of_the_most_used_layers_come_first():
    problems = preset("h200-epilogues")
    first, rest = problems[:53], problems[53:]
    assert {p.fusion for p in first[:4]} == {p.fusion for p in first} == {"pointwise:math", "pointwise:math:reads1"}
    assert {(1, 14336, 4096), (1024, 14336, 4096), (128, 3072, 768), (1500, 5120, 1280)} <= {
        (p.m, p.n, p.k) for p in first
    }
    assert len(set(problems)) == len(problems)
    assert all(representatives.rejection(problem) is None and affordable(problem) for problem in problems)
    # Of the rest, a tenth has every kind of epilogue that matters.
    kinds = {"none", "pointwise:math:reads1", "pointwise:math:kept", "pointwise:permuted", "pointwise:reads1"}
    assert kinds <= {problem.fusion for problem in rest[: len(rest) // 10]}
