"""int8- and uint8-weight GEMMs: every spelling is found, in time, and computed right."""

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
"""Those whose scale comes before the GEMM."""


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


def test_the_template_on_a_constant_weight(kit):
    kinds = [(weight, dtype) for weight in (torch.int8, torch.uint8) for dtype in (torch.bfloat16, torch.float16)]
    cases = [(*kind, SPELLINGS[name][0]) for kind in kinds for name in ("linear", "scaled, bias", "per tensor")]
    with torch.no_grad(), inductor_config.patch(freezing=True), force(kit.CPP):
        program_batch.compiled(
            [Quantised(*case) for case in cases], [(torch.randn(8, K).to(dtype),) for _, dtype, _ in cases]
        )
    assert kit.lowered() == [kit.CPP] * len(cases)


@pytest.mark.parametrize("freezing", [False, True])
def test_a_weight_stored_kn(kit, freezing):
    model = Quantised(torch.int8, torch.bfloat16, lambda s, x: (x @ s.w.to(x.dtype)) * s.s, stored_kn=True)
    stats = kit.forced(kit.INT8PACK, model.eval(), torch.randn(8, K).bfloat16(), freezing=freezing)
    assert " b=int8:row:16 " in kit.problems(stats)[0]
    assert kit.lowered(stats) == [kit.ATEN]


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


def test_other_patterns_are_left_alone(kit):
    models = [Quantised(torch.int8, torch.bfloat16, forward) for forward in OTHERS.values()]
    for model in models:
        model.register_buffer("k", torch.rand(K).bfloat16())
    with torch.no_grad(), force(kit.INT8PACK):
        program_batch.compiled(models, [(torch.randn(8, K).bfloat16(),) for _ in models])
    assert len(kit.problems()) == len(models)
    assert not any(text.startswith("mixed_mm") for text in kit.problems())


@pytest.mark.parametrize("freezing", [False, True], ids=["plain", "freezing"])
def test_an_addmm_that_inductor_makes_of_a_gemm_and_a_sum_is_known(kit, freezing):
    model = Quantised(torch.int8, torch.bfloat16, lambda s, x: x @ s.w.t().to(x.dtype) + s.b).eval()
    (text,) = kit.problems(kit.forced(None, model, torch.randn(8, K).bfloat16(), freezing=freezing))
    assert text.startswith("mixed_mm ")
    assert " bias=1d:bf16:8 " in text
    assert text.endswith(f"constant={freezing:d}")


def test_what_is_added_to_each_element_is_no_bias_of_one_row_either(kit):
    """Else a decode step would be looked up as other GEMMs than a step of several rows."""

    def forward(s, given):
        return given[1] + linear(given[0], s.w.to(torch.bfloat16)) * s.s

    sizes = [(1,), (8,), (1, 1), (1, 8)]
    inputs = [((torch.randn(*size, K).bfloat16(), torch.randn(*size, N).bfloat16()),) for size in sizes]
    with torch.no_grad(), force(kit.INT8PACK):
        program_batch.compiled([Quantised(torch.int8, torch.bfloat16, forward) for _ in sizes], inputs)
    assert sorted(text.split()[1] for text in kit.problems()) == ["m=1", "m=1", "m=8", "m=8"]
    assert all(text.startswith("mixed_mm ") for text in kit.problems())
    assert all(" bias=none " in text and " fusion=scale " in text for text in kit.problems())


def test_a_bias_is_one_also_of_one_row(kit):
    forwards = [lambda s, x, b=shape: linear(x, s.w.to(x.dtype)) * s.s + s.b.view(b) for shape in ((N,), (1, N))]
    with torch.no_grad(), force(kit.INT8PACK):
        program_batch.compiled(
            [Quantised(torch.int8, torch.bfloat16, one) for one in forwards], [(torch.randn(1, 1, K).bfloat16(),)] * 2
        )
    assert [" bias=1d:" in text for text in kit.problems()] == [True, True]


def squared(s, x):
    y = linear(x[:1], s.w.to(x.dtype))
    return y * y


NO_SCALE = {
    "the product itself": squared,
    "per head": lambda s, x: linear(x, s.w.to(x.dtype)).view(8, 4, 8) * s.s[:8],
    "flattened": lambda s, x: linear(x, s.w.to(x.dtype)).view(1, 8 * N) * s.s.repeat(8),
    "bias per head": lambda s, x: linear(x, s.w.to(x.dtype)).view(8, 4, 8) + s.b[:8],
}


def test_what_looks_like_a_scale_over_n_and_is_none(kit):
    models = [Quantised(torch.int8, torch.bfloat16, forward) for forward in NO_SCALE.values()]
    with torch.no_grad(), force(kit.INT8PACK):
        program_batch.compiled(models, [(torch.randn(8, K).bfloat16(),) for _ in models])
    assert len(kit.problems()) == len(models)
    for text in kit.problems():
        assert text.startswith("mixed_mm ")
        assert " fusion=scale " not in text
        assert " bias=none " in text
    assert kit.lowered() == [kit.INT8PACK] * len(models)
    assert gemmdb.inductor.stats()["errors"] == []


def test_a_scale_per_head_of_an_int_mm_is_not_its_scale(kit):
    def per_head(a, w, s):
        return torch._int_mm(a, w).view(32, 4, 8) * s

    a, w = (torch.randint(-9, 9, size, dtype=torch.int8) for size in ((32, K), (K, N)))
    (text,) = kit.problems(kit.forced(None, per_head, a, w, torch.rand(8)))
    assert " fusion=scale " not in text


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
    """A model that scales its weight first, and activations whose GEMM with the bare integers no fp16 can hold."""
    model = Quantised(weight, torch.float16, forward).eval()
    model.w.fill_(100)
    return model, torch.ones(8, K).half() * 16


@pytest.mark.parametrize("freezing", [False, True], ids=["plain", "freezing"])
def test_an_early_scale_keeps_fp16_from_overflowing(kit, freezing):
    """On the template too, whose weight is scaled at compile time, as long as the scale is known then."""
    cases = [overflowing(weight, SPELLINGS[name][0]) for weight in (torch.int8, torch.uint8) for name in EARLY]
    assert not any(linear(x, model.w.half()).isfinite().any() for model, x in cases)
    with torch.no_grad(), inductor_config.patch(freezing=freezing), force(kit.CPP):
        program_batch.compiled([model for model, _ in cases], [(x,) for _, x in cases])
    assert kit.lowered() == [kit.CPP if freezing else kit.ATEN] * len(cases)
    assert gemmdb.inductor.stats()["errors"] == []


def test_a_constant_weight_with_an_early_scale_that_is_none(kit):
    model, x = overflowing(torch.int8, lambda s, given: linear(given[0], s.w.half() * given[1][:, None]))
    stats = kit.forced(kit.CPP, model, (x, torch.rand(N).half() / 64), freezing=True)
    assert stats["errors"] == []
    assert kit.lowered(stats) == [kit.ATEN]


def test_one_that_misses_and_one_whose_answer_is_aten_stay_as_they_are(kit):
    model, x = overflowing(torch.int8, SPELLINGS["scaled weight"][0])
    with torch.no_grad():
        wanted = kit.compiled(model, x)
        for answer in (None, kit.ATEN):
            with force(lambda problem, answer=answer: answer):
                assert torch.equal(kit.compiled(model, x), wanted)
    assert [text.split()[0] for text in kit.problems()] == ["mixed_mm"] * 2


def test_gradients_through_an_early_scale_in_fp16(kit):
    cases = [overflowing(torch.int8, SPELLINGS[name][0]) for name in EARLY]
    inputs = [x.requires_grad_() for _, x in cases]
    with inductor_config.patch(freezing=False), force(kit.CPP):
        found = kit.compiled(program_batch.ProgramBatch([model for model, _ in cases]), *((x,) for x in inputs))
        sum(one.float().square().sum() for one in found).backward()
    for model, x in cases:
        (wanted,) = torch.autograd.grad(model(x).float().square().sum(), x)
        kit.close(x.grad, wanted)
    assert gemmdb.inductor.stats()["errors"] == []


def test_a_python_number_before_an_fp16_gemm_leaves_it_a_plain_one(kit):
    model, x = overflowing(torch.int8, lambda s, x: linear(x, s.w.to(x.dtype) * 0.0123))
    assert kit.problems(kit.forced(kit.INT8PACK, model, x))[0].startswith(f"mm m=8 n={N} k={K} ")


def test_a_gemm_with_two_users_keeps_its_value(kit):
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
