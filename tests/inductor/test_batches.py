"""Products of batches in real compiles: their backward, what follows them, and a batch of one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from kit.products import rand  # noqa: E402

import gemmdb.inductor  # noqa: E402
from gemmdb import Problem  # noqa: E402
from gemmdb.inductor import force  # noqa: E402

NOTHING: Callable[[Problem], None] = lambda problem: None  # noqa: E731


def test_the_backward_is_two_more_products(kit):
    a, b = torch.randn(3, 5, 16, requires_grad=True), torch.randn(3, 16, 8, requires_grad=True)
    with force(NOTHING):
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
    with torch.no_grad(), force(NOTHING):
        kit.compiled(lambda q, k: torch.softmax(q @ k.transpose(1, 2) / 4, dim=-1), q, k)
    (text,) = kit.problems()
    assert " fusion=none " in text


def test_a_batch_of_one_stays_a_batch_on_a_cpu(kit):
    a, b = rand(1, 5, 16), rand(1, 16, 8)
    with torch.no_grad(), force(NOTHING):
        kit.close(kit.compiled(torch.bmm, a, b), torch.bmm(a, b))
    assert [text.partition(" m=")[0] for text in kit.problems()] == ["bmm batch=1"]
