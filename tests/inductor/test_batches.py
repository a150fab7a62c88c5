"""GEMMs of batches in real compiles: their backward, what follows them, and a batch of one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from kit import program_batch
from kit.gemm_programs import rand

import gemmdb.inductor
from gemmdb import Problem
from gemmdb.inductor import force


def test_the_backward_is_two_more_gemms(kit):
    a, b = torch.randn(3, 5, 16, requires_grad=True), torch.randn(3, 16, 8, requires_grad=True)
    with force(kit.left_alone):
        kit.compiled(torch.bmm, a, b).sum().backward()
    grads = a.grad, b.grad
    a.grad = b.grad = None
    torch.bmm(a, b).sum().backward()
    for found, wanted in zip(grads, (a.grad, b.grad), strict=True):
        kit.close(found, wanted)
    assert {text.partition(" a=")[0] for text in kit.problems()} >= {"bmm batch=3 m=5 n=8 k=16"}
    assert gemmdb.inductor.stats()["uncovered"] == {}


def test_scores_that_a_softmax_follows_are_multiplied_alone(kit):
    """What leads to a reduction of rows becomes part of its kernel."""
    q, k = torch.randn(3, 5, 16), torch.randn(3, 8, 16)
    kit.forced(None, lambda q, k: torch.softmax(q @ k.transpose(1, 2) / 4, dim=-1), q, k)
    (text,) = kit.problems()
    assert " fusion=none " in text


def test_a_batch_of_one_stays_a_batch_on_a_cpu(kit):
    kit.forced(None, torch.bmm, rand(1, 5, 16), rand(1, 16, 8))
    assert [text.partition(" m=")[0] for text in kit.problems()] == ["bmm batch=1"]


def test_a_baddbmm_that_adds_nothing_is_a_gemm_of_batches(kit):
    """Attention scores are often spelled so, with a first argument that was never filled."""
    q, k = torch.randn(3, 5, 16), torch.randn(3, 8, 16)

    def scores(q, k):
        return [torch.baddbmm(torch.full((1,), torch.nan), q, k.transpose(1, 2), beta=0, alpha=a) for a in (1, 0.125)]

    with torch.no_grad(), force(kit.left_alone):
        for found, alpha in zip(kit.compiled(scores, q, k), (1, 0.125), strict=True):
            kit.close(found, q @ k.transpose(1, 2) * alpha)
    assert kit.problems() == [Problem.gemm("bmm", batch=3, m=5, n=8, k=16, dtype="fp32").text] * 2
    assert gemmdb.inductor.stats()["uncovered"] == {}


def test_a_baddbmm_that_adds_is_counted(kit):
    bias, a, b = torch.randn(3, 1, 8), torch.randn(3, 5, 16), torch.randn(3, 16, 8)

    def program(bias, a, b):
        return torch.baddbmm(bias, a, b) + torch.baddbmm(bias, a, b, beta=0.5)

    stats = kit.forced(None, program, bias, a, b)
    assert (stats["uncovered"], kit.problems(stats)) == ({"baddbmm": 2}, [])


EINSUMS = {
    "scores of one sequence": (
        lambda q, k: torch.einsum("bqhd,bkhd->bhqk", q, k), [(1, 6, 4, 16), (1, 8, 4, 16)],
        {"batch": 4, "m": 6, "n": 8, "k": 16, "interleaved": "ab"},
    ),
    "scores of several": (
        lambda q, k: torch.einsum("bqhd,bkhd->bhqk", q, k), [(2, 6, 4, 16), (2, 8, 4, 16)],
        {"batch": 8, "m": 6, "n": 8, "k": 16, "layout": "nn"},
    ),
    "into the latent size of MLA": (
        lambda q, w: torch.einsum("thd,hdc->thc", q, w), [(6, 4, 16), (4, 16, 32)],
        {"batch": 4, "m": 6, "n": 32, "k": 16, "layout": "nn", "interleaved": "a", "fusion": "pointwise:permuted"},
    ),
    "back from it": (
        lambda o, w: torch.einsum("thc,hvc->thv", o, w), [(6, 4, 32), (4, 16, 32)],
        {"batch": 4, "m": 6, "n": 16, "k": 32, "interleaved": "a", "fusion": "pointwise:permuted"},
    ),
    "an adapter's first half": (
        lambda x, a: torch.einsum("bsk,brk->bsr", x, a), [(4, 6, 32), (4, 8, 32)],
        {"batch": 4, "m": 6, "n": 8, "k": 32},
    ),
    "blocks of a diagonal": (
        lambda x, w: torch.einsum("bshd,hed->bshe", x, w), [(2, 3, 4, 16), (4, 16, 16)],
        {"batch": 4, "m": 6, "n": 16, "k": 16, "interleaved": "a", "fusion": "pointwise:permuted"},
    ),
}  # fmt: skip
"""Spellings of GEMMs of batches, with the sizes of their operands, and the problem of each."""


def test_einsum_is_found_with_its_layouts(kit):
    inputs = [tuple(torch.randn(*one) for one in sizes) for _, sizes, _ in EINSUMS.values()]
    programs = [lambda *given, run=program: run(*given).contiguous() for program, _, _ in EINSUMS.values()]
    with torch.no_grad(), force(kit.left_alone):
        program_batch.compiled(programs, inputs)
    wanted = [Problem.gemm("bmm", dtype="fp32", **problem).text for _, _, problem in EINSUMS.values()]
    assert sorted(kit.problems()) == sorted(wanted)
