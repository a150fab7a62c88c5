"""The representative of each class of epilogues: its program, its exact result, and what is not measured."""

from itertools import product

import pytest
import torch

from gemmdb.errors import InputError
from gemmdb.generators.measure import program
from gemmdb.generators.measure.correctness import reference
from gemmdb.generators.measure.operands import blank, operands
from gemmdb.generators.measure.program import Product
from gemmdb.generators.measure.tolerance import acceptable
from gemmdb.key import representatives
from gemmdb.key.epilogue import ARITHMETIC, ORDERS, READS, STORED, Epilogue
from gemmdb.key.problem import Problem
from gemmdb.key.representatives import head

CPU = torch.device("cpu")
CLASSES = [Epilogue(*fields) for fields in product(ARITHMETIC[:2], READS, (False, True), ORDERS, ("", "fp32"))]
OTHERS = [
    Problem.gemm("bmm", batch=3, m=5, n=8, k=16, dtype="fp16", fusion=f"pointwise:math:reads1:kept:{order}")
    for order in ORDERS[1:]
] + [
    Problem.gemm("addmm", m=24, n=48, k=64, dtype="fp32", fusion="pointwise:math:bf16"),
    Problem.gemm("mixed_mm", m=24, n=48, k=64, fusion="pointwise:reads2"),
    Problem.gemm("scaled_mm", m=17, n=48, k=64, fusion="pointwise:math:reads1"),
    Problem.gemm("mm", m=0, n=48, k=64, fusion="pointwise:math:permuted"),
]  # fmt: skip
PROBLEMS = [*(Problem.gemm("mm", m=24, n=48, k=64, fusion=one.text) for one in CLASSES), *OTHERS]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: f"{problem.op} {problem.fusion}")
def test_the_program_gives_the_exact_result_and_one_wrong_element_is_found(problem):
    given = operands(problem, CPU, seed=1)
    blanks, filled = ([(name, t.shape, t.stride(), t.dtype) for name, t in one.named.items()]
                      for one in (blank(problem, CPU), given))  # fmt: skip
    assert blanks == filled
    assert [one[0] for one in blanks if one[0].startswith("read")] == ["read1", "read2"][: problem.epilogue.reads]
    module = Product(problem, given)
    results = module(*module.inputs)
    kept = problem.epilogue.kept
    first = results[0] if kept else results
    assert not kept or torch.equal(results[1], given.a @ given.b)
    empty = program.output(problem, CPU)
    assert (first.shape, first.dtype) == (empty.shape, empty.dtype)
    assert first.is_contiguous()
    expected = reference(problem, given)
    error = expected.error(program.as_product(problem, first))
    assert acceptable(problem, error, error)
    if first.numel():
        wrong = first.clone()
        wrong[(-1,) * wrong.ndim] += 0.1 * float(expected.magnitude.max() + first.abs().max())
        assert not acceptable(problem, expected.error(program.as_product(problem, wrong)), error)


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ({"fusion": "pointwise:random"}, "dropout"),
        ({"fusion": "pointwise:int8"}, "rounding"),
        ({"op": "int_mm", "fusion": "pointwise:math"}, "integer"),
        ({"n": 44, "fusion": "pointwise:permuted"}, "44 columns have no heads"),
        ({"n": 64, "fusion": "pointwise:permuted"}, None),
        ({"fusion": "none"}, None),
        ({"fusion": "scale"}, None),
        ({"fusion": "pointwise:math:reads2:kept:transposed:fp32"}, None),
    ],
)
def test_what_is_not_measured(rest, reason):
    problem = Problem.gemm(**{"op": "mm", "m": 8, "n": 64, "k": 16} | rest)
    if reason is None:
        assert representatives.rejection(problem) is None
        return
    assert reason in str(representatives.rejection(problem))
    for make in (lambda: blank(problem, CPU), lambda: operands(problem, CPU, 1)):
        with pytest.raises(InputError, match=reason):
            make()


def test_heads_divide_the_columns_into_several():
    assert [head(n) for n in (4096, 96, 64, 24, 16, 8, 1001)] == [64, 32, 32, 8, 8, 0, 0]
    assert set(STORED.values()) == {"fp64", "fp32", "bf16", "int8"}
