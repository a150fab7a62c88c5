"""int8-weight GEMMs of activations and weights that are views: what Dynamo makes a bmm of is found as well."""

import pytest
import torch
import torch._inductor.config as inductor_config
from kit import program_batch
from torch.nn.functional import linear

import gemmdb.inductor
from gemmdb.inductor import force

N, K = 32, 64
W, KN = torch.randint(-100, 100, (N, K), dtype=torch.int8), torch.randint(-100, 100, (K, N), dtype=torch.int8)
S, B = (torch.rand(N) / 64).bfloat16(), torch.randn(N).bfloat16()


def activations(*sizes):
    return torch.randn(*(sizes or (2, 4, K))).bfloat16()


BATCHES = {
    # name: (function of the activations [2, 4, K], what the problem says)
    "the last token": (lambda x: linear(x[:, -1:], W.to(x.dtype)) * S, "m=2 n=32 k=64 a=bf16:row-padded:8 b=int8:col"),
    "bias": (lambda x: linear(x[:, 1:], W.to(x.dtype), B), "m=6 n=32 k=64 a=bf16:row:8 b=int8:col"),
    "scale and bias": (lambda x: linear(x[:, 1:], W.to(x.dtype)) * S + B, "m=6 n=32 k=64 a=bf16:row:8 b=int8:col"),
    "scaled weight": (lambda x: linear(x[:, 1:], W.to(x.dtype) * S[:, None]), "m=6 n=32 k=64 a=bf16:row:8 b=int8:col"),
    "transposed": (lambda x: linear(x.transpose(0, 1), W.to(x.dtype)) * S, "m=8 n=32 k=64 a=bf16:row:8 b=int8:col"),
    "stored [K, N]": (lambda x: x.transpose(0, 1) @ KN.to(x.dtype), "m=8 n=32 k=64 a=bf16:row:8 b=int8:row"),
    "einsum": (lambda x: torch.einsum("bsk,nk->bsn", x, W.to(x.dtype)) * S, "m=8 n=32 k=64 a=bf16:row:8 b=int8:col"),
    "four dimensions": (
        lambda x: linear(x.view(2, 2, 2, K).transpose(0, 1), W.to(x.dtype)) * S + B,
        "m=8 n=32 k=64 a=bf16:row:8 b=int8:col",
    ),
}


@pytest.mark.parametrize("freezing", [False, True], ids=["plain", "freezing"])
def test_activations_that_are_no_one_matrix(kit, freezing):
    models, inputs = [model for model, _ in BATCHES.values()], [(activations(),) for _ in BATCHES]
    with torch.no_grad(), inductor_config.patch(freezing=freezing), force(kit.INT8PACK):
        found = program_batch.compiled(models, inputs)
    for name, model, given, one in zip(BATCHES, models, inputs, found, strict=True):
        assert one.stride() == model(*given).stride(), name
    stats = gemmdb.inductor.stats()
    assert (stats["errors"], stats["uncovered"]) == ([], {})
    products = zip(kit.problems(stats), kit.lowered(stats), strict=True)
    assert all(text.startswith("mixed_mm ") for text in kit.problems(stats))
    keys = [(" ".join(text.split()[1:6]).rpartition(":")[0], " bias=1d:" in text, config) for text, config in products]
    assert sorted(keys) == sorted(
        (key, "bias" in name or name == "four dimensions", kit.ATEN if "b=int8:row" in key else kit.INT8PACK)
        for name, (_, key) in BATCHES.items()
    )


def test_they_may_be_of_any_size(kit):
    model = BATCHES["scale and bias"][0]
    with torch.no_grad(), force(kit.INT8PACK):
        run = torch.compile(model)
        for sizes in ((2, 4, K), (3, 7, K), (2, 9, K)):
            x = activations(*sizes)
            torch._dynamo.mark_dynamic(x, 0)
            torch._dynamo.mark_dynamic(x, 1)
            kit.close(run(x), model(x))
    stats = gemmdb.inductor.stats()
    assert stats["errors"] == []
    assert kit.lowered(stats) == [kit.INT8PACK]
    assert list(stats["products"][0]["ranges"]) == ["m"]


def test_their_gradients(kit):
    models = [BATCHES[name][0] for name in ("the last token", "scale and bias", "transposed", "stored [K, N]")]
    inputs = [activations().requires_grad_() for _ in models]
    with force(kit.INT8PACK):
        found = kit.compiled(program_batch.ProgramBatch(models), *((x,) for x in inputs))
        sum(one.float().square().sum() for one in found).backward()
    for model, x in zip(models, inputs, strict=True):
        (wanted,) = torch.autograd.grad(model(x).float().square().sum(), x)
        kit.close(x.grad, wanted)
    assert gemmdb.inductor.stats()["errors"] == []
    assert all(text.startswith("mixed_mm ") for text in kit.problems())
    assert len(kit.problems()) == 2 * len(models)


def test_one_that_misses_stays_as_it_is(kit):
    model, x = BATCHES["bias"][0], activations()
    with torch.no_grad(), force(lambda problem: None):
        assert torch.equal(kit.compiled(model, x), model(x))
    stats = gemmdb.inductor.stats()
    assert stats["uncovered"] == {}
    (text,) = kit.problems(stats)
    assert text.startswith("mixed_mm m=6 ")
    assert " bias=1d:" in text


def transposed_copy(x, w):
    return torch.bmm(x, w.to(x.dtype).t().contiguous().t()[None].expand(2, -1, -1))


OTHERS = {
    "a weight for each": (lambda x, w: torch.bmm(x, torch.stack([w, w + 1]).to(x.dtype)), False),
    "every second row": (lambda x, w: torch.bmm(x[..., ::2], w.to(x.dtype)[None, ::2].expand(2, -1, -1)), False),
    "a transposed copy": (transposed_copy, None),
    "no batch": (lambda x, w: torch.bmm(x[:1], w.to(x.dtype)[None]), True),
}


@pytest.mark.parametrize("name", OTHERS)
def test_only_one_weight_for_the_whole_batch(kit, name):
    """Whether the matrix that the batch repeats is the weight, its transpose, or neither."""
    model, mixed = OTHERS[name]
    x, w = activations(2, 4, K), torch.randint(-9, 9, (K, K), dtype=torch.int8)
    with torch.no_grad(), force(kit.INT8PACK):
        kit.close(kit.compiled(model, x, w), model(x, w))
    assert gemmdb.inductor.stats()["errors"] == []
    if mixed is not None:
        assert any(text.startswith("mixed_mm ") for text in kit.problems()) == mixed


class Weight(torch.nn.Module):
    """Holds an int8 weight, which freezing makes a constant, for a function of it and the activations."""

    def __init__(self, weight, function):
        super().__init__()
        self.register_buffer("w", weight)
        self.function = function

    def forward(self, x):
        return self.function(x, self.w)


def chunked(x, w):
    return [linear(x, part.to(x.dtype)) * s for part, s in zip(w.chunk(2), S.chunk(2), strict=True)]


PARTS = {
    # name: (function of activations [8, K] and a weight [N, K], weight in the key, N, whether the pick is possible)
    "rows": (lambda x, w: linear(x, w[8:24].to(x.dtype)) * S[8:24], "b=int8:col:16", 16, True),
    "rows without scale": (lambda x, w: linear(x, w[8:24].to(x.dtype)), "b=int8:col:16", 16, True),
    "chunks": (chunked, "b=int8:col:16", 16, True),
    "columns": (
        lambda x, w: linear(x[:, 16:48], w[:, 16:48].to(x.dtype)),
        "b=int8:col-padded:16", N, False,
    ),
    "a view": (lambda x, w: linear(x, w.view(2, N // 2, K)[1].to(x.dtype)), "b=int8:col:16", 16, True),
    "joined": (lambda x, w: linear(x, torch.cat([w[8:], w[:8]]).to(x.dtype)), "b=int8:col:16", N, True),
    "repeated": (lambda x, w: x @ w[:, :1].expand(N, K).t().to(x.dtype), "b=int8:broadcast:1", N, False),
}  # fmt: skip


@pytest.mark.parametrize("freezing", [False, True], ids=["plain", "freezing"])
def test_a_weight_that_is_cut_out_in_the_graph(kit, freezing):
    models = [Weight(W.clone(), function) for function, *_ in PARTS.values()]
    with torch.no_grad(), inductor_config.patch(freezing=freezing), force(kit.INT8PACK):
        program_batch.compiled(models, [(activations(8, K),) for _ in models])
    stats = gemmdb.inductor.stats()
    assert stats["errors"] == []
    found = []
    for text, config in zip(kit.problems(stats), kit.lowered(stats), strict=True):
        assert text.startswith("mixed_mm m=8 ")
        found.append((*(text.split()[i] for i in (2, 5)), text.split()[-1], config))
    assert sorted(found) == sorted(
        (f"n={n}", key, f"constant={freezing and name != 'joined':d}", kit.INT8PACK if possible else kit.ATEN)
        for name, (_, key, n, possible) in PARTS.items()
        for _ in range(2 if name == "chunks" else 1)
    )


def test_a_part_of_a_constant_on_the_template(kit):
    models = [Weight(W.clone(), PARTS[name][0]) for name in ("rows", "chunks", "columns")]
    with torch.no_grad(), inductor_config.patch(freezing=True), force(kit.CPP):
        program_batch.compiled(models, [(activations(8, K),) for _ in models])
    assert gemmdb.inductor.stats()["errors"] == []


NUMBERS = {
    "before the product": lambda x, w: linear(x, w.to(x.dtype) * 0.0123),
    "transposed": lambda x, w: x @ (0.0123 * w.t().to(x.dtype)),
    "with bias": lambda x, w: linear(x, w.to(x.dtype) * 0.0123, B),
    "of a batch": lambda x, w: linear(x.view(2, 4, K)[:, 1:], w.to(x.dtype) * 0.0123) + B,
}


@pytest.mark.parametrize("freezing", [False, True], ids=["plain", "freezing"])
def test_a_weight_that_is_scaled_by_a_python_number(kit, freezing):
    models = [Weight(W.clone(), function) for function in NUMBERS.values()]
    with torch.no_grad(), inductor_config.patch(freezing=freezing), force(kit.INT8PACK):
        program_batch.compiled(models, [(activations(8, K),) for _ in models])
    assert all(text.startswith("mixed_mm ") for text in kit.problems())
    found = [(" bias=1d:" in text, " fusion=none " in text, " fusion=pointwise " in text) for text in kit.problems()]
    biased = [name in ("with bias", "of a batch") for name in NUMBERS]
    assert sorted(found) == sorted((one, one, not one) for one in biased)
    assert kit.lowered() == [kit.INT8PACK] * len(NUMBERS)


def test_such_a_number_is_not_rounded(kit):
    exact = linear(x := activations(64, K), W.bfloat16()).double() * 0.0123
    with torch.no_grad(), force(kit.INT8PACK):
        found = kit.compiled(Weight(W.clone(), NUMBERS["before the product"]), x)
    # Rounded to bf16, 0.0123 is off by 0.2%, and all of the output with it.
    assert abs((found.double() / exact)[exact.abs() > 0.5].mean() - 1) < 5e-4
