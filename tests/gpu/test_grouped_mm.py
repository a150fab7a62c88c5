"""Products of groups on a GPU: right for every split, alone and in compiled programs, and measured over several."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import ends_of, make, measure

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.table.measurement import Status

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] in (9, 10)
pytestmark = [
    pytest.mark.usefixtures("clean"),
    pytest.mark.skipif(not HOPPER, reason="torch has kernels for groups from compute capability 9.0 on"),
]
GROUPS = 9
TEMPLATE = Config.of("triton", "inductor_grouped", block_m=16, block_n=64, block_k=64, group_m=8, warps=4, stages=3)
CONFIGS = [
    make("grouped"), make("grouped", swap=1), make("grouped", block_m=128, block_n=128, warps=8, resident=1),
    make("grouped", load="tma"), make("grouped", load="tma", swap=1), make("grouped", load="tma", flatten=1),
    make("grouped", load="tma", flatten=1, swap=1, block_n=128), make("grouped", block_k=32, block_m=64, stages=2),
    make("grouped", load="tma", flatten=1, block_m=128, block_n=128, warps=8, resident=1),
    make("grouped", split_k=2), make("grouped", split_k=5, swap=1), make("grouped", split_k=3, load="tma"),
]  # fmt: skip


def experts(m: int = 200, n: int = 264, k: int = 328, **rest: Any) -> Problem:
    return Problem.gemm("grouped_mm", m=m, n=n, k=k, groups=GROUPS, **rest)


def gradient(**rest: Any) -> Problem:
    return experts(264, 200, 328, ragged="k", layout="tn", **rest)


PROBLEMS = [
    *(experts(dtype=dtype, layout=layout) for dtype, layout in itertools.product(("bf16", "fp16"), ("nt", "nn", "tn"))),
    experts(m=3), experts(k=100), experts(m=1000, n=16), gradient(), gradient(dtype="fp16"),
    experts(264, 200, 328, ragged="k"), experts(264, 200, 5, ragged="k", layout="tn"),
]  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.text)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.text)
def test_every_split_is_right(problem: Problem, config: Config) -> None:
    from gemmdb.devices.detect import cuda
    from gemmdb.generators.measure.correctness import reference
    from gemmdb.generators.measure.cuda.calls import ours
    from gemmdb.generators.measure.cuda.render import plan
    from gemmdb.generators.measure.operands import operands
    from gemmdb.generators.measure.tolerance import tolerance

    device = cuda()
    assert device is not None
    if reason := config.rejection(problem, device):
        pytest.skip(str(reason))
    made = operands(problem, torch.device("cuda"), 1)
    for ends in ends_of(problem.m if problem.ragged == "m" else problem.k):
        one = replace(made, offsets=torch.tensor(ends, dtype=torch.int32, device="cuda"))
        out = torch.full(problem.shapes[2], float("nan"), dtype=made.a.dtype, device="cuda")
        call, _ = ours(problem, [one.named | {"out": out}], plan(problem, config))
        for _ in range(2):
            call(0)
        assert reference(problem, one).error(out) <= tolerance(problem), ends
        if problem.ragged == "m":
            beyond = out[ends[-1] :]
            assert bool(beyond.isnan().all() if config.values["flatten"] else (beyond == 0).all()), ends


def offsets(ends: list[int]) -> Any:
    return torch.tensor(ends, dtype=torch.int32, device="cuda")


def linear(x: Any, w: Any, offs: Any) -> Any:
    return torch._grouped_mm(x, w.transpose(-2, -1), offs=offs)


def exactly(x: Any, w: Any, ends: list[int]) -> Any:
    """The rows of all groups in float64, and zeros beyond."""
    found, start = torch.zeros(len(x), w.shape[1], dtype=torch.float64, device="cuda"), 0
    for group, end in enumerate(ends):
        found[start:end] = x[start:end].double() @ w[group].double().t()
        start = end
    return found


@pytest.mark.parametrize("config", [*CONFIGS[:7], *CONFIGS[-3:], TEMPLATE], ids=lambda config: config.text)
def test_a_compiled_program_is_right_for_every_split(kit: Any, config: Config) -> None:
    x, w = kit.rand(200, 328), kit.rand(GROUPS, 264, 328)
    with gemmdb.inductor.force(config), torch.no_grad():
        compiled = torch.compile(linear)
        for ends in ends_of(200):
            kit.close(compiled(x, w, offsets(ends))[: ends[-1]], exactly(x, w, ends)[: ends[-1]])
    assert kit.served() == [config.text]


@pytest.mark.parametrize("config", [*CONFIGS[:5], *CONFIGS[-3:]], ids=lambda config: config.text)
def test_what_is_fused_is_computed_for_rows_beyond_the_last_group_too(kit: Any, config: Config) -> None:
    """As the experts of a rank do with tokens of other ranks."""
    x, w, s = kit.rand(200, 328), kit.rand(GROUPS, 264, 328), kit.rand(200, 1)

    def model(x: Any, w: Any, offs: Any, s: Any, mine: Any) -> Any:
        return torch.where(mine, linear(x, w, offs) * s, 1.0)

    with gemmdb.inductor.force(config), torch.no_grad():
        compiled = torch.compile(model)
        for ends in ends_of(200):
            mine = (torch.arange(200, device="cuda") < ends[-1]).unsqueeze(1)
            found = compiled(x, w, offsets(ends), s, mine)
            kit.close(found, torch.where(mine, exactly(x, w, ends) * s.double(), 1.0))
    assert kit.served() == [config.text]
    (entry,) = gemmdb.inductor.stats()["products"]
    assert " fusion=pointwise" in entry["problem"]


@pytest.mark.parametrize(
    "config", [make("grouped"), make("grouped", load="tma"), make("grouped", split_k=2)], ids=lambda config: config.text
)
def test_any_number_of_rows(kit: Any, config: Config) -> None:
    w = kit.rand(GROUPS, 264, 328)
    with gemmdb.inductor.force(config), torch.no_grad():
        compiled = torch.compile(linear)
        for rows in (200, 64, 16, 777):
            x, ends = kit.rand(rows, 328), ends_of(rows, 1)[0]
            torch._dynamo.mark_dynamic(x, 0)
            kit.close(compiled(x, w, offsets(ends)), exactly(x, w, ends))
    assert kit.served() == [config.text]


@pytest.mark.parametrize("transposed", [False, True])
def test_a_training_step(kit: Any, transposed: bool) -> None:
    x, w = kit.rand(200, 328), kit.rand(GROUPS, 264, 328)
    w = w.transpose(1, 2).contiguous() if transposed else w
    ends = ends_of(200, 1)[0]

    def model(x: Any, w: Any, offs: Any) -> Any:
        return torch._grouped_mm(x, w if transposed else w.transpose(-2, -1), offs=offs)

    x, w = x.requires_grad_(), w.requires_grad_()
    with gemmdb.inductor.force(make("grouped")):
        torch.compile(model)(x, w, offsets(ends)).float().square().sum().backward()
    found = x.grad, w.grad
    x.grad = w.grad = None
    model(x, w, offsets(ends)).float().square().sum().backward()
    for one, other in zip(found, (x.grad, w.grad), strict=True):
        kit.close(one, other)
    assert kit.served() == [make("grouped").text] * 3


def test_matrices_that_are_farther_apart_than_32_bits_reach() -> None:
    groups, n, k = 80, 4096, 8192
    if torch.cuda.mem_get_info()[0] < 12 * 2**30:
        pytest.skip("needs 12 GiB of free memory")
    w = torch.randn(1, n, k, device="cuda").bfloat16().expand(groups, -1, -1).contiguous()
    x = torch.randn(groups, k, device="cuda").bfloat16()
    offs = torch.arange(1, groups + 1, dtype=torch.int32, device="cuda")
    for config in (make("grouped"), make("grouped", load="tma")):
        torch._dynamo.reset()
        with gemmdb.inductor.force(config), torch.no_grad():
            found = torch.compile(linear)(x, w, offs).double()
        wanted = x.double() @ w[0].double().t()
        assert float((found - wanted).abs().max()) <= 0.02 * float(wanted.abs().max())


@pytest.mark.parametrize("problem", [experts(fusion=fusion) for fusion in ("none", "pointwise")] + [gradient()],
                         ids=lambda problem: problem.text)  # fmt: skip
def test_all_kinds_of_kernels_are_measured(problem: Problem) -> None:
    """The generator's way: code is generated as in the compile pool, loaded, checked, captured and timed."""
    from gemmdb.devices.detect import cuda
    from gemmdb.generators.measure.cuda.artifacts import Emission

    device = cuda()
    assert device is not None
    wanted = [one for one in (make("grouped"), TEMPLATE) if not one.rejection(problem, device)]
    for config in wanted:
        if config.spec.emitted:
            assert Emission(problem, config).build(device.capability).failure == ""
    measure(problem, wanted, rounds=3)


def test_a_table_serves_the_kernel(kit: Any, tmp_path: Path) -> None:
    problem = experts()
    path = kit.table(tmp_path / "table.db", {problem: {make("grouped"): 50.0}})
    gemmdb.inductor.enable(tables=[path], on_miss="error")
    x, w, ends = kit.rand(200, 328), kit.rand(GROUPS, 264, 328), ends_of(200, 1)[0]
    with torch.no_grad():
        kit.close(torch.compile(linear)(x, w, offsets(ends)), exactly(x, w, ends))
    (entry,) = gemmdb.inductor.stats()["products"]
    assert (entry["rung"], entry["config"]) == ("exact", make("grouped").text)


def test_a_build_measures_all_kinds(tmp_path: Path) -> None:
    from gemmdb.devices.detect import cuda
    from gemmdb.generators.build.build import BuildRequest, build
    from gemmdb.table.reader import Table

    shapes = tmp_path / "shapes.json"
    shapes.write_text('[{"op": "grouped_mm", "m": 64, "n": 512, "k": 512, "groups": 16}]')
    out = tmp_path / "table.db"
    report = build(BuildRequest(arch="native", shapes=str(shapes), out=out))
    assert (report.measured, report.left) == (1, 0)
    problem, device = Problem.gemm("grouped_mm", m=64, n=512, k=512, groups=16), cuda()
    assert device is not None
    with Table.open(out) as table:
        rows, verdict = table.rows(problem, device), table.verdict(problem, device)
    timed = {row.config for row in rows if row.times}
    assert {config.kernel for config in timed} >= {"default", "grouped"}
    assert {row.status for row in rows} <= {Status.OK, Status.SLOW}
    assert verdict is not None
    assert 0 < verdict.ratio <= 1


@pytest.mark.parametrize(("tokens", "experts", "top"), [(1, 128, 8), (33, 8, 2), (300, 256, 8), (2000, 300, 8)])
def test_a_layer_with_its_routing(kit: Any, tokens: int, experts: int, top: int) -> None:
    """Few numbers are sorted by Inductor's code, more by torch's, in one or two bytes."""
    from torch._inductor.utils import run_and_get_code

    from benchmarks.programs.expert_layer import experts as layer

    chosen = torch.rand(tokens, experts, device="cuda").topk(top).indices
    shares, x = kit.rand(tokens, top), kit.rand(tokens, 256)
    up, down = kit.rand(experts, 2 * 64, 256) / 8, kit.rand(experts, 256, 64) / 8
    gemmdb.inductor.enable()
    with torch.no_grad():
        found, (code,) = run_and_get_code(torch.compile(layer), x, shares, chosen, up, down)
        kit.close(found, layer(x, shares, chosen, up, down))
    assert not gemmdb.inductor.stats()["errors"]
    assert "aten.histc" not in code
