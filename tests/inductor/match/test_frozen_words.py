"""Packed words that freezing makes constants: in any order of their groups, as `desc_act` of GPTQ has them, and bound
to the model that they were compiled for."""

from dataclasses import replace

import pytest
import torch
import torch._inductor.config as inductor_config
from kit import program_batch
from kit.devices import H200
from kit.gpu import make
from kit.sessions import FakeSession
from torch import nn
from torch._inductor.utils import run_and_get_code

import gemmdb.inductor
from gemmdb import Policy, Problem, Query
from gemmdb.hit import Hit
from gemmdb.inductor import force
from gemmdb.inductor.decide import legality
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.entry import active, post_grad_pass
from gemmdb.inductor.match import ops
from gemmdb.inductor.observe.journal import Event
from gemmdb.kernels.config import ATEN
from gemmdb.key.int4 import PACKED, WORDS, Int4Format
from gemmdb.settings import Settings

N, K, G = 64, 256, 64


class InBuffers(nn.Module):
    """As GPTQModel has a layer: the shifts and the group of each row are buffers."""

    def __init__(self, rows, zero_rows=None, turned=False):
        super().__init__()
        for name, sizes in (("w", (K // 8, N)), ("z", (K // G, N // 8))):
            self.register_buffer(name, torch.randint(-(2**31), 2**31 - 1, sizes, dtype=torch.int32))
        self.register_buffer("s", torch.rand(K // G, N).bfloat16() / 64)
        self.register_buffer("shifts", torch.arange(0, 32, 4, dtype=torch.int32).unsqueeze(0), persistent=False)
        self.register_buffer("g_idx", rows.to(torch.int32))
        self.register_buffer("zero_rows", (rows if zero_rows is None else zero_rows).to(torch.int32))
        self.turned = turned

    def forward(self, x):
        return torch.matmul(x, self.weight())

    def weight(self):
        zeros = torch.bitwise_right_shift(self.z.unsqueeze(2).expand(-1, -1, 8), self.shifts.unsqueeze(0))
        zeros = torch.bitwise_and(zeros.to(torch.int8), 15).reshape(K // G, -1)[:, :N]
        weight = torch.bitwise_right_shift(self.w.unsqueeze(1).expand(-1, 8, -1), self.shifts.unsqueeze(-1))
        weight = torch.bitwise_and(weight.to(torch.int8), 15).reshape(K, N)
        scales = self.s[self.g_idx.long()]
        if self.turned:
            scales = scales.view(2, K // 2, N).transpose(0, 1).reshape(K, N)
        return scales * (weight - zeros[self.zero_rows.long()])


GROUPS = torch.arange(K) // G
SHUFFLED = GROUPS[torch.randperm(K, generator=torch.Generator().manual_seed(1))]
IN_ORDER = [GROUPS, GROUPS.flip(0), torch.arange(K) % (K // G), SHUFFLED]


@pytest.mark.parametrize("freezing", [False, True], ids=["plain", "freezing"])
def test_buffers_are_known_only_to_freezing(kit, freezing):
    """What a buffer holds may change from call to call. Freezing fixes it. Rows in any order of their groups, as
    `desc_act` of GPTQ has them, are sorted."""
    others = [InBuffers(SHUFFLED, GROUPS), InBuffers(SHUFFLED, turned=True), InBuffers((GROUPS - 1).clamp(min=0))]
    layers = [*map(InBuffers, IN_ORDER), *others]
    with torch.no_grad(), inductor_config.patch(freezing=freezing), force(kit.ATEN):
        program_batch.compiled(layers, [(torch.randn(m, K).bfloat16(),) for m, _ in enumerate(layers, 8)])
    found = program_batch.by_rows(gemmdb.inductor.stats())
    ends = f"constant=1 group={G} zeros=int4 packing=gptq2"
    assert [found[m][0].endswith(ends) for m in range(8, 15)] == [freezing] * 4 + [False] * 3
    assert gemmdb.inductor.stats()["errors"] == []


@pytest.mark.parametrize("rows", [GROUPS, SHUFFLED], ids=["sorted", "shuffled"])
def test_freezing_dequantises_a_weight_once_where_no_kernel_multiplies_it(kit, rows):
    layer, x = InBuffers(rows), torch.randn(4, K).bfloat16()
    with torch.no_grad(), inductor_config.patch(freezing=True), force(kit.ATEN):
        wanted = layer(x).float()
        found, code = run_and_get_code(torch.compile(layer), x)
    assert (found.float() - wanted).abs().max() <= 0.02 * wanted.abs().max()
    assert all(">>" not in one for one in code)


@pytest.mark.parametrize("packing", ["gptq", "awq", "low-first", "high-first"])
def test_rows_of_a_packed_weight_are_sorted(packing):
    own = Int4Format(G, "int4" if packing in WORDS else "none", packing)
    sizes = PACKED[packing].sizes(N, K, 4 if packing in WORDS else 1)
    dtype = torch.int32 if packing in WORDS else torch.uint8
    info, rows = torch.iinfo(dtype), torch.randperm(K)
    packed = torch.randint(info.min, info.max, sizes, dtype=dtype)
    found = ops.with_rows(packed, rows, own)
    assert (found.dtype, found.shape) == (packed.dtype, packed.shape)
    assert torch.equal(ops.numbers(found, own), ops.numbers(packed, own)[:, rows])


@pytest.mark.parametrize("confirm", [True, False])
def test_a_kernel_that_was_not_timed_with_the_columns_in_order_is_not_served(kit, monkeypatch, confirm):
    """No row has the time that sorting the columns of the activation takes. On a CPU, no trial ends."""
    monkeypatch.setattr(legality, "hit_rejection", lambda hit, query: None)
    policy = Policy(on_miss="aten", confirm=confirm, confirm_s=300.0)
    gemmdb.inductor.enable(policy=policy)
    session = FakeSession(
        lambda query: Hit("exact", make("int4"), 50.0, 2.0, "table"), policy.resolved(Settings.read())
    )
    layer, x = InBuffers(SHUFFLED), torch.randn(4, K).bfloat16()
    with torch.no_grad(), inductor_config.patch(freezing=True), active.use(session):
        wanted = layer(x)
        found, code = run_and_get_code(torch.compile(layer), x)
    kit.close(found, wanted)
    assert kit.only()["config"] == kit.ATEN.text
    assert all(">>" not in one for one in code)


@pytest.mark.parametrize("rows", [GROUPS, SHUFFLED], ids=["sorted", "shuffled"])
def test_a_frozen_weight_is_not_served_to_another_model(kit, monkeypatch, rows):
    """The keys of Inductor's caches say only the shapes of frozen tensors. Without oneDNN, graphs are stored."""
    monkeypatch.setattr(legality, "hit_rejection", lambda hit, query: None)
    policy = Policy(on_miss="aten")
    gemmdb.inductor.enable(policy=policy)
    session = FakeSession(
        lambda query: Hit("exact", make("int4"), 50.0, 2.0, "table"), policy.resolved(Settings.read()), "tables"
    )
    x = torch.randn(4, K).bfloat16()
    stored = inductor_config.patch(freezing=True, fx_graph_cache=True)
    with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False), active.use(session), stored:
        for _ in range(2):
            torch._dynamo.reset()
            layer = InBuffers(rows)
            kit.close(torch.compile(layer)(x), layer(x))
    assert kit.only()["note"]


def test_untimed_kernels_of_a_range_are_not_served_where_the_config_at_the_hint_is_atens():
    rows = {"m": (1, 4096)}
    query = Query(Problem.gemm("mixed_mm", m=512, n=N, k=K, weight_dtype="int4", packing="gptq2"), H200, rows)
    parts = ((16, make("int4")), (None, ATEN))
    event = Event(query.problem.text, "near", ATEN.text)
    decision = Decision(FakeSession(), query, ATEN, event, branches=parts, reorders=True)
    found = post_grad_pass._certain(decision)
    assert (found.config, found.branches, found.refused) == (ATEN, (), True)
    assert post_grad_pass._certain(replace(decision, reorders=False)).branches == parts
