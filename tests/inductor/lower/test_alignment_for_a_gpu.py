"""What a GPU would be handed where operands, constants and scales may begin anywhere."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from kit import program_batch
from kit.for_a_gpu import CUTLASS, MAPPED, PERSISTENT, TILE, asked, inside, ints, linear, rand
from torch._inductor import config as inductor_config

from gemmdb import Config, Problem
from gemmdb.inductor import force
from gemmdb.inductor.observe.journal import JOURNAL


def test_an_input_keeps_the_alignment_that_it_has_in_its_storage(reached: list[str]) -> None:
    """In Inductor's IR every input and constant begins at offset 0."""
    seen = []

    def by_alignment(problem: Problem) -> Config:
        seen.append((problem.a.layout.align, problem.b.layout.align))
        return PERSISTENT if seen[-1] == (8, 8) else TILE

    w = rand(512, 256)
    for x, aligned in ((inside(48, 256, 1), 1), (inside(48, 256, 4), 4), (inside(48, 256, 8), 8)):
        product = asked(lambda x, w: x @ w.t(), x, w, config=by_alignment, dynamic=False)
        assert f"a=bf16:row:{aligned}" in product["problem"]
        assert product["note"] == "that far"
    asked(lambda x, w: x @ w.t(), w, inside(48, 256, 2), config=by_alignment, dynamic=False)
    assert set(seen) == {(1, 8), (4, 8), (8, 8), (8, 2)}
    assert reached == ["tile", "tile", "persistent", "tile"]


def test_a_copy_of_a_misaligned_input_is_aligned(reached: list[str]) -> None:
    x, w = inside(48, 256, 1), rand(512, 256)
    asked(lambda x, w: (x + 1) @ w.t(), x, w, config=PERSISTENT, dynamic=False)
    assert reached == ["persistent"]


@pytest.mark.parametrize("config", MAPPED, ids=lambda config: config.name)
def test_tensor_maps_of_what_may_begin_anywhere_are_refused(config: Config, reached: list[str]) -> None:
    x, w = inside(48, 256, 1), rand(512, 256)
    product = asked(lambda x, w: x @ w.t(), x, w, config=config, dynamic=False)
    assert "start at multiples of 16 bytes" in product["note"]
    # Inductor promises nothing of what an operator that it calls makes of such an input.
    product = asked(lambda x, w: x.sort().values @ w.t(), x, w, config=config, dynamic=False)
    assert "aligned to 16 bytes" in product["note"]
    assert reached == []
    asked(lambda x, w: x.sort().values @ w.t(), inside(48, 256, 8), w, config=config, dynamic=False)
    assert len(reached) == 1


@pytest.mark.parametrize("config", [TILE, *MAPPED], ids=lambda config: config.name)
def test_a_misaligned_constant_is_refused(config: Config, reached: list[str]) -> None:
    """Inductor tells Triton of every constant that it is aligned."""
    offsets = ((1, 0), (4, 0), (8, 1), (8, 8))
    models = [torch.nn.Linear(256, 512).bfloat16().eval() for _ in offsets]
    for model, (weight, bias) in zip(models, offsets, strict=True):
        model.weight = torch.nn.Parameter(inside(512, 256, weight))
        model.bias = torch.nn.Parameter(rand(512 + bias)[bias:])
    with torch.no_grad(), force(config), inductor_config.patch(freezing=True):
        program_batch.compiled(models, [(rand(48, 256),) for _ in models])
    for event, (weight, bias) in zip(JOURNAL.events, offsets, strict=True):
        assert ("16 bytes" in event.note) == ((weight, bias) != (8, 8))
        assert f"b=bf16:col:{weight}" in event.problem
    assert len(reached) == 1


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_a_scale_that_may_begin_anywhere_is_refused(offset: int, reached: list[str]) -> None:
    """CUTLASS wants every pointer aligned, and no key says how a scale is."""
    a, b, s = ints(64, 512), ints(1024, 512), torch.rand(1024 + offset)[offset:]
    integer = asked(lambda a, b, s: (torch._int_mm(a, b.t()) * s).bfloat16(), a, b, s, config=CUTLASS, dynamic=False)
    x, s = rand(64, 512), rand(1024 + 2 * offset)[2 * offset :]
    mixed = asked(lambda x, w, s: linear(x, w.to(x.dtype)) * s, x, b, s, config=CUTLASS, dynamic=False)
    for product in (integer, mixed):
        assert ("aligned to 16 bytes" in product["note"]) == (offset == 1)
    assert len(reached) == (0 if offset == 1 else 2)


@pytest.mark.parametrize("offset", [1, 8])
def test_a_column_of_biases_that_may_begin_anywhere_is_refused(offset: int, reached: list[str]) -> None:
    bias, a, b = inside(33, 1, offset), rand(33, 512), rand(512, 1024)
    product = asked(torch.addmm, bias, a, b, config=CUTLASS, dynamic=False)
    assert ("aligned to 16 bytes" in product["note"]) == (offset == 1)
    assert len(reached) == (offset == 8)
