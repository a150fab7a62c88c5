"""A GEMM with a symbolic M that several kernels share: the choice is made at run time, in Inductor's own code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kit.sessions import FakeSession
from torch._inductor import config
from torch._inductor.utils import run_and_get_code

import gemmdb.inductor
from gemmdb import Config
from gemmdb.hit import Hit
from gemmdb.inductor.decide import legality
from gemmdb.inductor.decide.decision import Decision
from gemmdb.inductor.entry import active, enable
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.inductor.lower import branches
from gemmdb.inductor.observe.journal import Event
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem, Query
from gemmdb.outcome import RESPELLED
from gemmdb.settings import Policy
from gemmdb.table.writer import Store

PACK = Config.of("aten", "int8pack_mm")
WEIGHT = torch.randint(-128, 128, (96, 64), dtype=torch.int8)
SCALE = (torch.rand(96) / 64).bfloat16()


def model(x, w, s):
    return torch.relu(torch.nn.functional.linear(x, w.to(x.dtype)) * s)


def rows(m, *shape):
    x = torch.randn(*(shape or (m,)), 64).bfloat16()
    torch._dynamo.mark_dynamic(x, x.dim() - 2)
    return x


@pytest.fixture(autouse=True)
def installed():
    enable.install()


@pytest.fixture
def dividing():
    """Compile with a session that divides every GEMM with a symbolic M as it is told."""

    def made(*parts):
        def find(query):
            return Hit("exact", parts[0][1], 1.0, 2.0, "", {}, parts) if "m" in query.ranges else None

        return active.use(FakeSession(find, Policy(), None))

    return made


def check(kit, run, sizes, shape=()):
    for m in sizes:
        x = rows(m, *(part or m for part in shape))
        kit.close(run(x, WEIGHT, SCALE), model(x, WEIGHT, SCALE))


def check_rows(kit, function, inputs):
    """Compile a function of rows, of which there may be any number, and run it on each of the inputs."""
    run = torch.compile(function)
    for x in inputs:
        torch._dynamo.mark_dynamic(x, 0)
        kit.close(run(x), function(x))


THREE = ((64, PACK), (128, ATEN), (None, PACK))


def test_two_and_three_kernels_share_a_range(kit, dividing):
    for parts in (THREE[1:], THREE):
        torch._dynamo.reset()
        gemmdb.inductor.reset_stats()
        with dividing(*parts):
            run = torch.compile(model)
            _, (code, *rest) = run_and_get_code(run, rows(32), WEIGHT, SCALE)
            check(kit, run, (2, 64, 65, 100, 128, 129, 300))
        assert not rest
        # ATen is that kernel, too, for this problem.
        assert code.count("extern_kernels._weight_int8pack_mm(") == len(parts)
        assert [f"<= {limit}" in code for limit in (64, 128)] == [len(parts) == 3, True]
        (product,) = gemmdb.inductor.stats()["products"]
        note = f"m from {65 if len(parts) == 3 else 2} to 128: {RESPELLED}"
        assert (product["note"], product["count"], product["ranges"]) == (note, 1, {"m": [2, None]})


def test_m_may_be_a_gemm_of_sizes(kit, dividing):
    with dividing(*THREE):
        run = torch.compile(model)
        check(kit, run, (8, 16, 17, 32, 33, 90), shape=(4, None))
    assert gemmdb.inductor.stats()["products"][0]["note"] == ""


@pytest.mark.parametrize("weight", [WEIGHT, WEIGHT.abs().to(torch.uint8)], ids=["int8", "uint8"])
def test_every_branch_scales_an_fp16_weight_first_where_the_program_does(kit, dividing, weight):
    """The GEMM of the bare integers would overflow."""

    def early(x, w, s):
        return torch.nn.functional.linear(x, w.to(x.dtype) * s[:, None])

    weight, scale, sizes = weight.clone().fill_(100), SCALE.half(), (32, 64, 65, 128, 129)
    inputs = [rows(m).half().fill_(16) for m in sizes]
    for x in inputs:
        torch._dynamo.mark_dynamic(x, 0)
    plain = torch.compile(early)
    wanted = [plain(x, weight, scale) for x in inputs]
    torch._dynamo.reset()
    with dividing((64, ATEN), (128, ATEN), (None, ATEN)):
        run = torch.compile(early)
        for x, value in zip(inputs, wanted, strict=True):
            assert torch.equal(run(x, weight, scale), value)
    (product,) = gemmdb.inductor.stats()["products"]
    assert product["problem"].startswith("mixed_mm ")
    assert (product["note"], product["ranges"]) == ("", {"m": [2, None]})


def test_addmm_keeps_its_scalars_in_every_branch(kit, dividing):
    w, bias = torch.randn(64, 96), torch.randn(96)

    with dividing((64, ATEN), (None, ATEN)):
        inputs = [torch.randn(m, 64) for m in (32, 64, 65)]
        check_rows(kit, lambda x: torch.addmm(bias, x, w, alpha=2.0, beta=0.5), inputs)
    assert gemmdb.inductor.stats()["products"][0]["note"] == ""


def test_a_branch_that_cannot_be_lowered_is_aten_and_says_so(kit, dividing, monkeypatch):
    monkeypatch.setattr(legality, "hit_rejection", lambda hit, query: None)
    tile = Config.of(
        "triton", "tile", block_m=16, block_n=64, block_k=64, group_m=8, split_k=1, reduce="none", swap=0,
        load="pointer", dequant="cast", warps=4, stages=3,
    )  # fmt: skip
    with dividing((64, tile), (None, PACK)):
        check(kit, torch.compile(model), (32, 64, 65))
    (product,) = gemmdb.inductor.stats()["products"]
    assert product["note"].startswith("m from 2 to 64: ")
    assert "does not solve mixed_mm on cpu" in product["note"]


def unscaled(x, w):
    return torch.nn.functional.linear(x, w.to(x.dtype))


def test_a_branch_without_a_scale_makes_its_own_ones(kit, dividing):
    with torch.no_grad(), dividing((64, PACK), (None, ATEN)):
        check_rows(kit, lambda x: unscaled(x, WEIGHT), [rows(m) for m in (32, 64, 65)])
    assert kit.only()["note"] == ""


def test_in_a_branch_of_the_program_nothing_sees_where_the_weight_begins(kit):
    def function(x, p):
        return torch.cond(p.sum() > 0, lambda x: unscaled(x, WEIGHT), lambda x: unscaled(x, WEIGHT) * 2, (x,))

    x = torch.randn(8, 64).bfloat16()
    with torch.no_grad(), gemmdb.inductor.force(PACK):
        run = torch.compile(function)
        for p in (torch.ones(2), -torch.ones(2)):
            kit.close(run(x, p), function(x, p))
    products = gemmdb.inductor.stats()["products"]
    assert {product["note"] for product in products} == {"the weight may not be 16-byte aligned"}
    assert kit.lowered() == [ATEN, ATEN]


def test_a_weight_of_any_width_has_as_many_ones(kit):
    torch._dynamo.mark_dynamic(weight := WEIGHT.clone(), 0)
    with torch.no_grad(), gemmdb.inductor.force(PACK):
        run = torch.compile(unscaled)
        for w in (weight, weight[:48].clone()):
            kit.close(run(torch.ones(8, 64).bfloat16(), w), unscaled(torch.ones(8, 64).bfloat16(), w))
    assert gemmdb.inductor.stats()["errors"] == []
    assert kit.lowered() == [PACK]


@pytest.mark.parametrize("weight", [WEIGHT, WEIGHT.abs().to(torch.uint8)], ids=["int8", "uint8"])
def test_a_weight_that_is_no_constant_of_a_branch_is_not_packed_there(kit, dividing, weight):
    model = torch.nn.Module()
    model.register_buffer("w", weight)
    model.forward = lambda x: unscaled(x, model.w)
    with torch.no_grad(), config.patch(freezing=True), dividing((64, kit.CPP), (None, ATEN)):
        check_rows(kit, model, [rows(m) for m in (32, 65)])
    assert gemmdb.inductor.stats()["errors"] == []


def test_an_operand_may_begin_inside_its_storage(kit, dividing):
    storage = torch.randn(100, 96)

    with dividing((64, ATEN), (None, ATEN)):
        check_rows(kit, lambda x: x @ storage[36:], [torch.randn(m, 64) for m in (32, 65)])
    assert gemmdb.inductor.stats()["products"][0]["note"] == ""


def test_the_operands_of_graphs_have_no_offset(kit, dividing):
    """Where a kernel is a graph of its own, it has each operand's start, and no offset within its storage."""
    storage = torch.randint(-128, 128, (100, 64), dtype=torch.int8)

    with torch.no_grad(), dividing((64, PACK), (None, ATEN)):
        check_rows(kit, lambda x: unscaled(x, storage[4:]), [rows(m) for m in (32, 65)])
    assert gemmdb.inductor.stats()["products"][0]["note"] == "an operand has a storage offset"


def test_graphs_are_recorded_of_whole_gemms_only(kit, dividing):
    import torch._inductor.config as config

    with config.patch({"triton.cudagraphs": True}), dividing(*THREE):
        check(kit, torch.compile(model), (32, 100))
    (product,) = gemmdb.inductor.stats()["products"]
    assert "in CUDA graphs" in product["note"]
    assert product["note"].endswith(RESPELLED)
    assert product["config"] == PACK.text


@pytest.mark.slow
def test_a_package_of_aotinductor_chooses_without_gemmdb(dividing, tmp_path: Path, kit):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("w", WEIGHT)
            self.register_buffer("s", SCALE)

        def forward(self, x):
            return model(x, self.w, self.s)

    net, sizes = Net().eval(), (2, 64, 65, 200)
    dim = torch.export.Dim("rows", min=2, max=1024)
    with torch.no_grad(), dividing(*THREE[1:]):
        exported = torch.export.export(net, (torch.randn(32, 64).bfloat16(),), dynamic_shapes={"x": {0: dim}})
        package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "net.pt2"))
    assert gemmdb.inductor.stats()["products"][0]["note"] == f"m from 2 to 128: {RESPELLED}"
    inputs = [torch.randn(m, 64).bfloat16() for m in sizes]
    for x, y in zip(inputs, kit.unpacked(package, *((x,) for x in inputs)), strict=True):
        kit.close(y, net(x))


def test_a_table_divides_a_range_and_bounds_narrow_it(kit, tmp_path: Path):
    problem = Problem.gemm("mixed_mm", m=32, n=96, k=64, fusion="scale")
    path = tmp_path / "table.db"
    with Store.open(path) as store:
        for m in (2, 4, 8, 16, 32, 64, 128, 256):
            store.add(kit.rows(replace(problem, m=m), {PACK: 50.0 if m <= 64 else 150.0}))
        store.refresh()
    with active.use(TableSession(Policy(near=False), [path])):
        run = torch.compile(model)
        check(kit, run, (32, 64, 65, 300))
        (product,) = gemmdb.inductor.stats()["products"]
        kernels = [(part["config"], part["m"][-1]) for part in product["evidence"]["kernels"]]
        assert kernels[0] == (PACK.text, 64)
        assert kernels[1][0] == ATEN.text
        torch._dynamo.reset()
        gemmdb.inductor.reset_stats()

        def narrowed(x, w, s):
            torch._check(x.shape[0] <= 64)
            return model(x, w, s)

        run = torch.compile(narrowed)
        check(kit, run, (32, 64, 3))
        (product,) = gemmdb.inductor.stats()["products"]
        assert product["ranges"] == {"m": [2, 64]}
        assert product["config"] == PACK.text
        assert "kernels" not in product["evidence"]


def test_the_parts_cover_the_range_once():
    parts = []
    decision = Decision(
        FakeSession(lambda query: None, Policy(), None),
        Query(Problem.gemm("mm", m=16, n=64, k=64), None, {"m": (2, None)}),  # type: ignore[arg-type]
        ATEN, Event("", "exact"), THREE,
    )  # fmt: skip
    while decision.branches:
        first, decision = branches._divided(decision)
        parts.append((first.query.ranges["m"], first.config))
    parts.append((decision.query.ranges["m"], decision.config))
    assert parts == [((2, 64), PACK), ((65, 128), ATEN), ((129, None), PACK)]
