"""Int4 weights that a program unpacks: which spellings are found, which are not, and what the operator computes."""

import functools
from types import SimpleNamespace

import pytest
import torch
import torch._inductor.config as inductor_config
from kit import program_batch
from kit.dequantised import replaced
from kit.gemm_programs import placeholders
from torch import nn
from torch.nn.functional import linear

import gemmdb.inductor
from gemmdb.inductor import force
from gemmdb.inductor.match import ops
from gemmdb.inductor.match.ops import dequantised
from gemmdb.key.int4 import Int4Format

N, K, G = 32, 128, 32


def stacked(w, first=0):
    halves = (w & 15, w >> 4)
    return torch.stack([halves[first], halves[1 - first]], dim=-1).view(N, K)


def grouped(numbers, dtype):
    return numbers.to(dtype).view(N, K // G, G)


SPELLINGS = {
    # name: (weight [N, K] of module and dtype, zero points, packing)
    "stacked, zero points": (
        lambda s, d: ((grouped(stacked(s.w), d) - s.z[..., None]) * s.s[..., None]).view(N, K), "float", "low-first"
    ),
    "integer zero points": (
        lambda s, d: ((grouped(stacked(s.w), d) - s.u[..., None]) * s.s[..., None]).view(N, K), "uint8", "low-first"
    ),
    "cast zero points, scale first": (
        lambda s, d: (s.s[..., None] * (grouped(stacked(s.w), d) - s.u.to(d)[..., None])).view(N, K), "uint8",
        "low-first",
    ),
    "signed, counted before": (
        lambda s, d: (s.s[:, :, None] * grouped(stacked(s.w).to(torch.int8) - 8, d)).reshape(N, K), "none", "low-first"
    ),
    "halves counted before": (
        lambda s, d: (grouped(torch.stack(((s.w & 0xF).to(torch.int8) - 8, (s.w >> 4).to(torch.int8) - 8), dim=2)
                              .reshape(N, K), d) * s.s[:, :, None]).reshape(N, K), "none", "low-first",
    ),
    "high first": (
        lambda s, d: ((grouped(stacked(s.w, 1), d) - 8) * s.s[..., None]).view(N, K), "none", "high-first"
    ),
    "concatenated, masked": (
        lambda s, d: ((grouped(torch.cat([(s.w & 15)[..., None], ((s.w >> 4) & 15)[..., None]], -1).flatten(1), d) - 8)
                      * s.s.unsqueeze(2)).flatten(1), "none", "low-first",
    ),
    "repeated scales": (
        lambda s, d: (stacked(s.w).to(d) - s.z.repeat_interleave(G, 1)) * s.s.repeat_interleave(G, 1), "float",
        "low-first",
    ),
    "int8 zero points": (
        lambda s, d: (grouped(stacked(s.w).to(torch.int8).view(N, K // G, G) - s.i[..., None], d) * s.s[..., None])
        .view(N, K), "int8", "low-first",
    ),
}  # fmt: skip
UNLIKE = {
    "unsigned numbers wrap around": lambda s, d: (
        (stacked(s.w).view(N, K // G, G) - s.u[..., None]) * s.s[..., None]).view(N, K),
    "counted from 7": lambda s, d: ((grouped(stacked(s.w), d) - 7) * s.s[..., None]).view(N, K),
    "scaled in fp32": lambda s, d: (
        (grouped(stacked(s.w), torch.float32) - 8) * s.s.float()[..., None]).view(N, K).to(d),
    "one half twice": lambda s, d: (
        (grouped(torch.stack([s.w & 15, s.w & 15], -1).view(N, K), d) - 8) * s.s[..., None]).view(N, K),
    "halves one after the other": lambda s, d: (
        (grouped(torch.cat([s.w & 15, s.w >> 4], -1), d) - 8) * s.s[..., None]).view(N, K),
    "other bits": lambda s, d: (
        (grouped(torch.stack([s.w & 7, s.w >> 4], -1).view(N, K), d) - 8) * s.s[..., None]).view(N, K),
    "scales of columns": lambda s, d: ((stacked(s.w).to(d) - 8) * s.s[:, :1]).view(N, K),
    "scales repeated the other way": lambda s, d: (
        (stacked(s.w).to(d) - 8) * s.s[:, None, :].expand(N, G, K // G).reshape(N, K)),
    "no scale": lambda s, d: (stacked(s.w).to(d) - 8),
}  # fmt: skip
"""What is no such weight: the GEMM of a computed weight is looked up, as without int4."""


class Unpacked(nn.Module):
    def __init__(self, dtype, weight):
        super().__init__()
        self.register_buffer("w", torch.randint(0, 256, (N, K // 2), dtype=torch.uint8))
        self.register_buffer("s", torch.rand(N, K // G).to(dtype) / 64)
        self.register_buffer("z", torch.randint(0, 16, (N, K // G)).to(dtype))
        self.register_buffer("u", torch.randint(0, 16, (N, K // G), dtype=torch.uint8))
        self.register_buffer("i", torch.randint(0, 16, (N, K // G), dtype=torch.int8))
        self.register_buffer("b", torch.randn(N).to(dtype))
        self.weight, self.dtype = weight, dtype

    def forward(self, x, bias=None):
        return linear(x, self.weight(self, self.dtype), bias)


@pytest.mark.parametrize("freezing", [False, True], ids=["plain", "freezing"])
def test_every_spelling(kit, freezing):
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
    cases = [(name, spelling) for name in dtypes for spelling in SPELLINGS]
    models = [Unpacked(dtypes[name], SPELLINGS[spelling][0]) for name, spelling in cases]
    with torch.no_grad(), inductor_config.patch(freezing=freezing), force(kit.ATEN):
        inputs = [(torch.randn(m, K).to(dtypes[name]),) for m, (name, _) in enumerate(cases, 8)]
        program_batch.compiled(models, inputs)
    stats = gemmdb.inductor.stats()
    found = program_batch.by_rows(stats)
    for m, (name, spelling) in enumerate(cases, 8):
        _, zeros, packing = SPELLINGS[spelling]
        text, config = found.pop(m)
        kind = name if zeros == "float" else zeros
        start = f"mixed_mm m={m} n={N} k={K} a={name}:row:8 b=int4:col:16 out={name} bias=none "
        assert text.startswith(start), spelling
        assert text.endswith(f"constant={freezing:d} group={G} zeros={kind} packing={packing}"), spelling
        assert config == kit.ATEN, spelling
    assert found == {}
    assert stats["errors"] == []


def test_what_is_no_int4_weight(kit):
    models, rows = [Unpacked(torch.bfloat16, weight) for weight in UNLIKE.values()], range(8, 8 + len(UNLIKE))
    with torch.no_grad(), force(kit.ATEN):
        program_batch.compiled(models, [(torch.randn(m, K).bfloat16(),) for m in rows])
    found = program_batch.by_rows()
    for m, name in zip(rows, UNLIKE, strict=True):
        assert found.pop(m)[0].startswith(f"mm m={m} n={N} k={K} a=bf16:row:8 b=bf16:col:8 "), name
    assert found == {}


@pytest.mark.parametrize("added", [False, True], ids=["in the linear", "after it"])
def test_a_bias_and_more_dimensions(kit, added):
    model = Unpacked(torch.bfloat16, SPELLINGS["high first"][0])
    x = torch.randn(2, 4, K).bfloat16()

    def program(x):
        return model(x) + model.b if added else model(x, model.b)

    with torch.no_grad(), force(kit.ATEN):
        kit.close(kit.compiled(program, x), program(x))
    (text,) = kit.problems(gemmdb.inductor.stats())
    assert text.startswith(f"mixed_mm m=8 n={N} k={K} ")
    assert " bias=1d:bf16:8 " in text


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_operator_computes_what_the_program_does(spelling):
    weight, *_ = SPELLINGS[spelling]
    model, x = Unpacked(torch.bfloat16, weight), torch.randn(4, K).bfloat16()
    buffers = dict(model.named_buffers())

    def program(bias, x, *tensors):
        module = SimpleNamespace(**dict(zip(buffers, tensors, strict=True)))
        return linear(x, weight(module, torch.bfloat16), module.b if bias else None)

    for bias in (False, True):
        replaced(functools.partial(program, bias), (x, *buffers.values()))


def test_the_operator_in_its_forms():
    a = torch.randn(3, K).bfloat16()
    packed = torch.randint(-(2**31), 2**31 - 1, (N // 8, K // 32, 32, 1), dtype=torch.int32)
    scale = torch.rand(K // G, N, 2).bfloat16()
    args = (a, packed, scale, None, G, "tinygemm2")
    wanted = linear(a, dequantised(packed, scale, None, Int4Format(G, "bf16", "tinygemm2"), torch.bfloat16))
    assert torch.equal(ops.overload("int4_mm")(*args), wanted)
    meta = ops.overload("int4_mm")(*(one.to("meta") if isinstance(one, torch.Tensor) else one for one in args))
    assert (meta.shape, meta.dtype) == (wanted.shape, wanted.dtype)
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        ops.overload("int4_mm")(*args)
    assert counter.get_total_flops() == 2 * 3 * N * K


def test_operators_of_other_libraries_are_counted_with_their_name():
    from gemmdb.inductor.match import gemms

    library = torch.library.Library("mslk", "FRAGMENT")
    library.define("bf16i4bf16_rowwise(Tensor x, Tensor w, Tensor s, Tensor z) -> Tensor")
    library.define("bf16bf16_rowwise(Tensor x, Tensor w) -> Tensor")
    try:
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        node = graph.call_function(torch.ops.mslk.bf16i4bf16_rowwise.default, (x, x, x, x))
        assert gemms.uncovered(node) == "int4_mm of mslk"
        assert gemms.uncovered(graph.call_function(torch.ops.mslk.bf16bf16_rowwise.default, (x, x))) is None
    finally:
        library._destroy()


@pytest.mark.parametrize(("sizes", "reason"), [
    ((N // 8, 1, 32, 3), "a weight packed as"), ((N // 8, 1, 32, 4), "a weight packed as"),
])  # fmt: skip
def test_a_tiled_weight_elsewhere_than_on_a_gpu_is_uncovered(sizes, reason):
    from gemmdb.inductor.match import gemms
    from gemmdb.inductor.match.fx import Unsupported

    x, s, out = (torch.empty(one, dtype=torch.bfloat16, device="meta") for one in ((4, K), (1, N, 2), (4, N)))
    graph, nodes = placeholders(x=x, w=torch.empty(sizes, dtype=torch.int32, device="meta"), s=s)
    node = graph.call_function(torch.ops.aten._weight_int4pack_mm.default, (nodes["x"], nodes["w"], 128, nodes["s"]))
    node.meta["val"] = out
    with pytest.raises(Unsupported, match=reason):
        gemms.read(node)
