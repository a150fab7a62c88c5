"""int8- and uint8-weight products: every spelling is found, in time, and computed right."""

import pytest
import torch
import torch._inductor.config as inductor_config
from kit import program_batch
from torch import nn
from torch.nn.functional import linear

import gemmdb.inductor
from gemmdb.inductor import force

N, K = 32, 64

SPELLINGS = {
    # name: (function of module and activation, fusion, bias) with the weight stored [N, K]
    "linear": (lambda s, x: linear(x, s.w.to(x.dtype)), "none", False),
    "matmul": (lambda s, x: x @ s.w.t().to(x.dtype), "none", False),
    "linear scaled": (lambda s, x: linear(x, s.w.to(x.dtype)) * s.s, "scale", False),
    "scale first": (lambda s, x: s.s * linear(x, s.w.to(x.dtype)), "scale", False),
    "transpose, cast": (lambda s, x: (x @ s.w.t().to(x.dtype)) * s.s, "scale", False),
    "cast, transpose": (lambda s, x: (x @ s.w.to(x.dtype).t()) * s.s, "scale", False),
    "scaled weight": (lambda s, x: linear(x, s.w.to(x.dtype) * s.s[:, None]), "scale", False),
    "scaled transposed weight": (lambda s, x: x @ (s.w.t().to(x.dtype) * s.s), "scale", False),
    "per tensor": (lambda s, x: linear(x, s.w.to(x.dtype)) * s.one, "scale", False),
    "per tensor, weight": (lambda s, x: linear(x, s.w.to(x.dtype) * s.one), "scale", False),
    "scale kept in fp32": (lambda s, x: linear(x, s.w.to(x.dtype)) * s.f.to(x.dtype), "scale", False),
    "column kept in fp32": (
        lambda s, x: linear(x, s.w.to(x.dtype)) * s.f[:, None].to(x.dtype).view(-1),
        "scale",
        False,
    ),
    "scaled, bias": (lambda s, x: linear(x, s.w.to(x.dtype)) * s.s + s.b, "scale", True),
    "bias": (lambda s, x: linear(x, s.w.to(x.dtype), s.b), "none", True),
    "three dimensions": (lambda s, x: linear(x.view(2, -1, K), s.w.to(x.dtype)) * s.s + s.b, "scale", True),
}
EARLY = ("scaled weight", "scaled transposed weight", "per tensor, weight")
"""Those whose scale comes before the product."""


class Quantised(nn.Module):
    def __init__(self, weight_dtype, dtype, forward, stored_kn=False):
        super().__init__()
        low = 0 if weight_dtype == torch.uint8 else -100
        w = torch.randint(low, 100, (N, K), dtype=weight_dtype)
        self.register_buffer("w", w.t().contiguous() if stored_kn else w)
        self.register_buffer("s", torch.rand(N).to(dtype) / 64)
        self.register_buffer("f", torch.rand(N) / 64)
        self.register_buffer("one", (torch.rand(1) / 64).to(dtype))
        self.register_buffer("b", torch.randn(N).to(dtype))
        self.run = forward

    def forward(self, x):
        return self.run(self, x)


@pytest.mark.parametrize("freezing", [False, True], ids=["plain", "freezing"])
@pytest.mark.parametrize("weight", [torch.int8, torch.uint8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_spelling(kit, dtype, weight, freezing):
    rows = {name: 8 + 2 * i for i, name in enumerate(SPELLINGS)}
    models = [Quantised(weight, dtype, forward) for forward, _, _ in SPELLINGS.values()]
    with torch.no_grad(), inductor_config.patch(freezing=freezing), force(kit.INT8PACK):
        program_batch.compiled(models, [(torch.randn(m, K).to(dtype),) for m in rows.values()])
    stats = gemmdb.inductor.stats()
    found = program_batch.by_rows(stats)
    legal = (dtype, weight) == (torch.bfloat16, torch.int8)
    for name, (_, fusion, bias) in SPELLINGS.items():
        text, config = found.pop(rows[name])
        assert text.startswith(f"mixed_mm m={rows[name]} n={N} k={K} "), name
        assert f" fusion={fusion} " in text, name
        assert (" bias=1d:" in text) == bias, name
        assert text.endswith(f"constant={freezing:d}"), name
        assert config == (kit.INT8PACK if legal else kit.ATEN), name
    assert found == {}
    assert stats["errors"] == []
    assert stats["benchmarked"] == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weight", [torch.int8, torch.uint8])
def test_the_template_on_a_constant_weight(kit, weight, dtype):
    models = [Quantised(weight, dtype, SPELLINGS[name][0]) for name in ("linear", "scaled, bias", "per tensor")]
    with torch.no_grad(), inductor_config.patch(freezing=True), force(kit.CPP):
        program_batch.compiled(models, [(torch.randn(8, K).to(dtype),) for _ in models])
    assert kit.lowered() == [kit.CPP] * 3


@pytest.mark.parametrize("freezing", [False, True])
def test_a_weight_stored_kn(kit, freezing):
    def forward(s, x):
        return (x @ s.w.to(x.dtype)) * s.s

    model, x = Quantised(torch.int8, torch.bfloat16, forward, stored_kn=True).eval(), torch.randn(8, K).bfloat16()
    with torch.no_grad(), inductor_config.patch(freezing=freezing), force(kit.INT8PACK):
        kit.close(kit.compiled(model, x), model(x))
    assert " b=int8:row:16 " in kit.problems()[0]
    assert kit.lowered() == [kit.ATEN]


def test_a_vector_of_activations_and_dynamic_rows(kit):
    model = Quantised(torch.int8, torch.bfloat16, SPELLINGS["linear scaled"][0]).eval()
    with torch.no_grad(), force(kit.INT8PACK):
        torch._dynamo.reset()
        run = torch.compile(model, dynamic=True)
        for rows in (8, 3, 1):
            x = torch.randn(rows, K).bfloat16()
            kit.close(run(x), model(x))
    assert all(text.startswith("mixed_mm") for text in kit.problems())


OTHERS = {
    "a cast of floats": lambda s, x: x @ s.s.float().to(x.dtype)[:, None].expand(N, K).t(),
    "a scale along K": lambda s, x: x @ (s.w.t().to(x.dtype) * s.k[:, None]),
    "two weights": lambda s, x: x @ (s.w.to(x.dtype) + s.w.to(x.dtype)).t(),
    "the weight in fp32": lambda s, x: x.float() @ s.w.t().to(torch.float32),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_patterns_are_left_alone(kit, name):
    model = Quantised(torch.int8, torch.bfloat16, OTHERS[name])
    model.register_buffer("k", torch.rand(K).bfloat16())
    x = torch.randn(8, K).bfloat16()
    with torch.no_grad(), force(kit.INT8PACK):
        kit.close(kit.compiled(model, x), model(x))
    assert not any(text.startswith("mixed_mm") for text in kit.problems())


@pytest.mark.parametrize("freezing", [False, True], ids=["plain", "freezing"])
def test_an_addmm_that_inductor_makes_of_a_product_and_a_sum_is_known(kit, freezing):
    def forward(s, x):
        return x @ s.w.t().to(x.dtype) + s.b

    model, x = Quantised(torch.int8, torch.bfloat16, forward).eval(), torch.randn(8, K).bfloat16()
    with torch.no_grad(), inductor_config.patch(freezing=freezing), force(lambda problem: None):
        kit.close(kit.compiled(model, x), model(x))
    (text,) = kit.problems()
    assert text.startswith("mixed_mm ")
    assert " bias=1d:bf16:8 " in text
    assert text.endswith(f"constant={freezing:d}")


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("dims", [2, 3])
def test_what_is_added_to_each_element_is_no_bias_of_one_row_either(kit, dims, rows):
    """Else a decode step would ask about other products than a step of several rows."""
    forward = lambda s, given: given[1] + linear(given[0], s.w.to(torch.bfloat16)) * s.s  # noqa: E731
    model = Quantised(torch.int8, torch.bfloat16, forward).eval()
    x, residual = (torch.randn(*(1,) * (dims - 2), rows, size).bfloat16() for size in (K, N))
    with torch.no_grad(), force(kit.INT8PACK):
        kit.close(kit.compiled(model, (x, residual)), model((x, residual)))
    (text,) = kit.problems()
    assert text.startswith(f"mixed_mm m={rows} ")
    assert " bias=none " in text
    assert " fusion=scale " in text


@pytest.mark.parametrize("shape", [(N,), (1, N)])
def test_a_bias_is_one_also_of_one_row(kit, shape):
    forward = lambda s, x: linear(x, s.w.to(x.dtype)) * s.s + s.b.view(shape)  # noqa: E731
    model, x = Quantised(torch.int8, torch.bfloat16, forward).eval(), torch.randn(1, 1, K).bfloat16()
    with torch.no_grad(), force(kit.INT8PACK):
        kit.close(kit.compiled(model, x), model(x))
    assert " bias=1d:" in kit.problems()[0]


def squared(s, x):
    y = linear(x[:1], s.w.to(x.dtype))
    return y * y


NO_SCALE = {
    "the product itself": squared,
    "per head": lambda s, x: linear(x, s.w.to(x.dtype)).view(8, 4, 8) * s.s[:8],
    "flattened": lambda s, x: linear(x, s.w.to(x.dtype)).view(1, 8 * N) * s.s.repeat(8),
    "bias per head": lambda s, x: linear(x, s.w.to(x.dtype)).view(8, 4, 8) + s.b[:8],
}


@pytest.mark.parametrize("name", NO_SCALE)
def test_what_looks_like_a_scale_over_n_and_is_none(kit, name):
    model, x = Quantised(torch.int8, torch.bfloat16, NO_SCALE[name]).eval(), torch.randn(8, K).bfloat16()
    with torch.no_grad(), force(kit.INT8PACK):
        kit.close(kit.compiled(model, x), model(x))
    (text,) = kit.problems()
    assert text.startswith("mixed_mm ")
    assert " fusion=scale " not in text
    assert " bias=none " in text
    assert kit.lowered() == [kit.INT8PACK]
    assert gemmdb.inductor.stats()["errors"] == []


def test_a_scale_per_head_of_an_int_mm_is_not_its_scale(kit):
    def per_head(a, w, s):
        return torch._int_mm(a, w).view(32, 4, 8) * s

    def per_channel(a, w, s):
        return torch._int_mm(a, w).to(torch.float32) * s

    a, w = (torch.randint(-9, 9, size, dtype=torch.int8) for size in ((32, K), (K, N)))
    for function, scale, fusion in ((per_head, torch.rand(8), False), (per_channel, torch.rand(N), True)):
        gemmdb.inductor.reset_stats()
        with force(lambda problem: None):
            kit.close(kit.compiled(function, a, w, scale), function(a, w, scale))
        assert (" fusion=scale " in kit.problems()[0]) == fusion


def test_rows_that_only_the_data_know_are_left_alone(kit):
    def forward(s, x):
        rows = x[torch.nonzero(x[:, 0] > 0).squeeze(1)]
        return linear(rows, s.w.to(x.dtype)) * rows[:, :N]

    model, x = Quantised(torch.int8, torch.bfloat16, forward).eval(), torch.randn(8, K).bfloat16()
    with (
        torch.no_grad(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), force(kit.INT8PACK),
    ):  # fmt: skip
        kit.close(kit.compiled(model, x, fullgraph=True), model(x))
    assert gemmdb.inductor.stats()["errors"] == []


def overflowing(weight, forward):
    """A model that scales its weight first, and activations whose product with the bare integers no fp16 can hold."""
    model = Quantised(weight, torch.float16, forward).eval()
    model.w.fill_(100)
    return model, torch.ones(8, K).half() * 16


@pytest.mark.parametrize("weight", [torch.int8, torch.uint8])
@pytest.mark.parametrize("spelling", EARLY)
def test_an_early_scale_keeps_fp16_from_overflowing(kit, spelling, weight):
    """On the template too, whose weight is scaled at compile time, as long as the scale is known then."""
    model, x = overflowing(weight, SPELLINGS[spelling][0])
    assert not linear(x, model.w.half()).isfinite().any()
    for freezing in (False, True):
        gemmdb.inductor.reset_stats()
        with torch.no_grad(), inductor_config.patch(freezing=freezing), force(kit.CPP):
            kit.close(kit.compiled(model, x), model(x))
        assert kit.lowered() == [kit.CPP if freezing else kit.ATEN]
        assert gemmdb.inductor.stats()["errors"] == []


def test_a_constant_weight_with_an_early_scale_that_is_none(kit):
    model, x = overflowing(torch.int8, lambda s, given: linear(given[0], s.w.half() * given[1][:, None]))
    scale = torch.rand(N).half() / 64
    with torch.no_grad(), inductor_config.patch(freezing=True), force(kit.CPP):
        kit.close(kit.compiled(model, (x, scale)), model((x, scale)))
    assert gemmdb.inductor.stats()["errors"] == []
    assert kit.lowered() == [kit.ATEN]


def test_one_that_misses_and_one_whose_answer_is_aten_stay_as_they_are(kit):
    model, x = overflowing(torch.int8, SPELLINGS["scaled weight"][0])
    with torch.no_grad():
        wanted = kit.compiled(model, x)
        for answer in (None, kit.ATEN):
            with force(lambda problem, answer=answer: answer):
                assert torch.equal(kit.compiled(model, x), wanted)
    assert [text.split()[0] for text in kit.problems()] == ["mixed_mm"] * 2


@pytest.mark.parametrize("spelling", EARLY)
def test_gradients_through_an_early_scale_in_fp16(kit, spelling):
    model, x = overflowing(torch.int8, SPELLINGS[spelling][0])
    x.requires_grad_()
    with inductor_config.patch(freezing=False), force(kit.CPP):
        kit.compiled(model, x).float().square().sum().backward()
    (wanted,) = torch.autograd.grad(model(x).float().square().sum(), x)
    kit.close(x.grad, wanted)
    assert gemmdb.inductor.stats()["errors"] == []


def test_a_python_number_before_an_fp16_product_leaves_it_a_plain_one(kit):
    model, x = overflowing(torch.int8, lambda s, x: linear(x, s.w.to(x.dtype) * 0.0123))
    with torch.no_grad(), force(kit.INT8PACK):
        kit.close(kit.compiled(model, x), model(x))
    assert kit.problems()[0].startswith(f"mm m=8 n={N} k={K} ")


def test_a_product_with_two_users_keeps_its_value(kit):
    def forward(s, x):
        y = linear(x, s.w.to(x.dtype))
        return y * s.s, y.float().sum()

    model, x = Quantised(torch.int8, torch.bfloat16, forward).eval(), torch.randn(8, K).bfloat16()
    with torch.no_grad(), force(kit.INT8PACK):
        found, total = kit.compiled(model, x)
        wanted, wanted_total = model(x)
    kit.close(found, wanted)
    assert abs(total - wanted_total) <= 0.02 * abs(wanted_total) + 10
    assert kit.lowered() == [kit.INT8PACK]


def test_gradients_through_a_mixed_product(kit):
    model = Quantised(torch.int8, torch.bfloat16, SPELLINGS["linear scaled"][0])
    x = torch.randn(8, K).bfloat16().requires_grad_()
    with force(kit.INT8PACK):
        kit.compiled(model, x).sum().backward()
    (wanted,) = torch.autograd.grad(model(x).sum(), x)
    kit.close(x.grad, wanted)
