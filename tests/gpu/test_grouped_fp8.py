"""Groups of fp8 operands with scales on a GPU: right for every split, alone and in compiled programs, and measured."""

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import ends_of, make, measure

import gemmdb.inductor
from gemmdb import Config, Problem

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [
    pytest.mark.usefixtures("clean"),
    pytest.mark.skipif(not HOPPER, reason="torch multiplies groups of fp8 on Hopper alone"),
]
GROUPS, N, K = 9, 272, 336
TEMPLATE = Config.of("triton", "inductor_grouped", block_m=16, block_n=64, block_k=128, group_m=8, warps=4, stages=3)
CONFIGS = [
    make("grouped", block_k=128), make("grouped", block_k=256, swap=1), make("grouped", load="tma", block_k=128),
    make("grouped", load="tma", flatten=1, swap=1, block_n=128, block_k=128),
    make("grouped", block_m=64, block_n=128, block_k=128),
    make("grouped", load="tma", flatten=1, block_m=128, block_n=128, block_k=128, warps=8, resident=1),
]  # fmt: skip


def experts(m: int = 200, n: int = N, k: int = K, fast: bool = True, **rest: Any) -> Problem:
    return Problem.gemm("grouped_mm", m=m, n=n, k=k, groups=GROUPS, dtype="fp8_e4m3", fast_accum=fast, **rest)


PROBLEMS = [experts(), experts(fast=False), experts(m=3), experts(m=1000, n=16), experts(k=256), experts(k=16)]


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
    assert config.rejection(problem, device) is None
    made = operands(problem, torch.device("cuda"), 1)
    for ends in ends_of(problem.m):
        scale_a = made.scale_a.clone()
        scale_a[ends[-1] :] = float("inf")  # Nobody computes row scales that belong to no group.
        one = replace(made, scale_a=scale_a, offsets=offsets(ends))
        out = torch.full(problem.shapes[2], float("nan"), dtype=torch.bfloat16, device="cuda")
        call, _ = ours(problem, [one.named | {"out": out}], plan(problem, config))
        for _ in range(2):
            call(0)
        assert reference(problem, one).error(out) <= tolerance(problem), ends
        beyond = out[ends[-1] :]
        assert bool(beyond.isnan().all() if config.values["flatten"] else (beyond == 0).all()), ends


def offsets(ends: list[int]) -> Any:
    return torch.tensor(ends, dtype=torch.int32, device="cuda")


def quantised(*sizes: int) -> tuple[Any, Any]:
    """A random fp8 tensor, and the scale of each of its rows."""
    exact = torch.randn(*sizes, device="cuda")
    scale = exact.abs().amax(-1) / 448
    return (exact / scale.unsqueeze(-1)).to(torch.float8_e4m3fn), scale


def linear(x: Any, w: Any, scale_a: Any, scale_b: Any, offs: Any) -> Any:
    return torch._scaled_grouped_mm(x, w.transpose(-2, -1), scale_a, scale_b, offs=offs, use_fast_accum=True)


def linear_in_full(x: Any, w: Any, scale_a: Any, scale_b: Any, offs: Any) -> Any:
    return torch._scaled_grouped_mm(x, w.transpose(-2, -1), scale_a, scale_b, offs=offs)


def exactly(x: Any, w: Any, scale_a: Any, scale_b: Any, ends: list[int]) -> Any:
    """The rows of all groups in float64, and zeros beyond."""
    found, start = torch.zeros(len(x), w.shape[1], dtype=torch.float64, device="cuda"), 0
    for group, end in enumerate(ends):
        a = x[start:end].double() * scale_a[start:end, None].double()
        found[start:end] = a @ (w[group].double() * scale_b[group, :, None].double()).t()
        start = end
    return found


def given(rows: int) -> tuple[Any, ...]:
    """The activation, the weights, and the scales of both."""
    (x, scale_a), (w, scale_b) = quantised(rows, K), quantised(GROUPS, N, K)
    return x, w, scale_a, scale_b


def test_torch_means_the_same(kit: Any) -> None:
    inputs = given(200)
    for model in (linear, linear_in_full):
        for ends in ends_of(200):
            rows = ends[-1]
            kit.close(model(*inputs, offsets(ends))[:rows], exactly(*inputs, ends)[:rows])


@pytest.mark.parametrize("config", [*CONFIGS[:4], TEMPLATE], ids=lambda config: config.text)
def test_a_compiled_program_is_right_for_every_split(kit: Any, config: Config) -> None:
    inputs = given(200)
    for model in (linear, linear_in_full) if config.values["block_k"] == 128 else (linear,):
        torch._dynamo.reset()
        with gemmdb.inductor.force(config), torch.no_grad():
            compiled = torch.compile(model)
            for ends in ends_of(200):
                kit.close(compiled(*inputs, offsets(ends))[: ends[-1]], exactly(*inputs, ends)[: ends[-1]])
    assert set(kit.served()) == {config.text}


@pytest.mark.parametrize("config", [CONFIGS[1], CONFIGS[2]], ids=lambda config: config.text)
def test_what_is_fused_is_computed_for_rows_beyond_the_last_group_too(kit: Any, config: Config) -> None:
    inputs, s = given(200), kit.rand(200, 1)

    def model(x: Any, w: Any, scale_a: Any, scale_b: Any, offs: Any, s: Any, mine: Any) -> Any:
        return torch.where(mine, linear(x, w, scale_a, scale_b, offs) * s, 1.0)

    with gemmdb.inductor.force(config), torch.no_grad():
        compiled = torch.compile(model)
        for ends in ends_of(200, 3):
            mine = (torch.arange(200, device="cuda") < ends[-1]).unsqueeze(1)
            found = compiled(*inputs, offsets(ends), s, mine)
            kit.close(found, torch.where(mine, exactly(*inputs, ends) * s.double(), 1.0))
    assert kit.served() == [config.text]


def test_activations_that_the_graph_quantises_and_any_number_of_rows(kit: Any) -> None:
    w, scale_b = quantised(GROUPS, N, K)

    def model(x: Any, w: Any, scale_b: Any, offs: Any) -> Any:
        scale = x.abs().amax(1).float() / 448
        return linear((x / scale.unsqueeze(1)).to(torch.float8_e4m3fn), w, scale, scale_b, offs)

    config = CONFIGS[1]
    with gemmdb.inductor.force(config), torch.no_grad():
        compiled = torch.compile(model)
        for rows in (200, 64, 777):
            x, ends = kit.rand(rows, K), ends_of(rows, 1)[0]
            torch._dynamo.mark_dynamic(x, 0)
            exact = exactly(x, w, torch.ones(rows, device="cuda"), scale_b, ends)
            kit.close(compiled(x, w, scale_b, offsets(ends)), exact, 0.06)
    assert kit.served() == [config.text]


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("fusion", ["none", "pointwise:fp32"])
def test_all_kinds_of_kernels_are_measured(fast: bool, fusion: str) -> None:
    """The generator's way: code is generated as in the compile pool, loaded, checked, captured and timed."""
    from gemmdb.devices.detect import cuda
    from gemmdb.generators.measure.cuda.artifacts import Emission

    problem, device = experts(fast=fast, fusion=fusion), cuda()
    assert device is not None
    wanted = [one for one in (CONFIGS[1], TEMPLATE) if not one.rejection(problem, device)]
    assert len(wanted) == (2 if fusion == "none" else 1)
    for config in wanted:
        if config.spec.emitted:
            assert Emission(problem, config).build(device.capability).failure == ""
    measure(problem, wanted, rounds=3)
