"""Which GEMMs get a kernel, and that the results stay right: shapes, layouts, dtypes, gradients, threads."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch._inductor.config as inductor_config
from kit import program_batch
from torch import nn
from torch._inductor.utils import run_and_get_code

import gemmdb.inductor
from gemmdb import Config
from gemmdb.inductor import force
from gemmdb.inductor.entry import enable


def mlp(dtype=torch.float32):
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32)).eval().to(dtype)


def test_freezing_on_serves_the_packed_template(kit):
    dtypes = torch.float32, torch.bfloat16, torch.float16
    with torch.no_grad(), inductor_config.patch(freezing=True), force(kit.CPP):
        program_batch.compiled(
            [mlp(dtype) for dtype in dtypes], [(torch.randn(8, 64, dtype=dtype),) for dtype in dtypes]
        )
    assert kit.lowered() == [kit.CPP] * 6
    assert all("constant=1" in problem for problem in kit.problems())
    assert [entry["note"] for entry in gemmdb.inductor.stats()["products"]] == [""] * 6
    assert gemmdb.inductor.stats()["benchmarked"] == 0


def test_freezing_off_refuses_the_packed_template_with_a_reason(kit):
    stats = kit.forced(kit.CPP, mlp(), torch.randn(8, 64))
    assert kit.lowered(stats) == [kit.ATEN, kit.ATEN]
    assert "constant" in stats["products"][0]["note"]


def test_explicit_blocking_reaches_the_generated_code(kit):
    threads = torch.get_num_threads()
    blocks = {"threads_m": 1, "threads_n": threads, "threads_k": 1, "blocks_m": 1, "blocks_n": 1, "blocks_k": 16}
    config = Config.of("cpp", "packed_gemm", **blocks)
    model, x = nn.Linear(64, 64).eval(), torch.randn(4, 64)
    with torch.no_grad(), inductor_config.patch(freezing=True), force(config):
        found, code = run_and_get_code(torch.compile(model), x)
    kit.close(found, model(x))
    assert kit.lowered() == [config]
    assert "Kc_blocks = 16;" in code[0]


def test_a_hit_benchmarks_nothing_under_max_autotune(kit):
    stats = kit.forced(kit.ATEN, mlp(), torch.randn(8, 64), freezing=True, max_autotune=True)
    assert stats["benchmarked"] == 0
    assert kit.lowered(stats) == [kit.ATEN, kit.ATEN]


def test_the_benchmark_counter_sees_what_inductor_does_without_us(kit):
    enable.install()
    options = {"freezing": True, "max_autotune_gemm": True, "autotune_local_cache": False}
    assert kit.checked(nn.Linear(64, 32).eval(), torch.randn(4, 64), **options)["benchmarked"] == 1


def test_a_gemm_that_is_left_alone_gives_the_code_of_default_mode():
    x, w = torch.randn(8, 64), torch.randn(64, 32)

    def code():
        torch._dynamo.reset()
        _, (source,) = run_and_get_code(torch.compile(lambda x, w: torch.relu(x @ w) + 1), x, w)
        return [line for line in source.splitlines() if "AOT ID" not in line and not line.lstrip().startswith("#")]

    plain = code()
    with force(lambda problem: None):
        assert code() == plain


def test_static_and_dynamic_shapes(kit):
    model = mlp()
    with torch.no_grad(), inductor_config.patch(freezing=True), force(kit.CPP):
        run = torch.compile(model, dynamic=True)
        for rows in (8, 5, 33):
            x = torch.randn(rows, 64)
            kit.close(run(x), model(x))
    stats = gemmdb.inductor.stats()
    assert kit.lowered(stats) == [kit.CPP, kit.CPP]
    assert stats["products"][0]["ranges"] == {"m": [2, None]}
    assert " m=8 " in stats["products"][0]["problem"]


def test_bounds_of_mark_dynamic_narrow_the_range():
    x = torch.randn(16, 64)
    torch._dynamo.mark_dynamic(x, 0, min=4, max=256)
    with force(lambda problem: None):
        torch.compile(lambda x, w: x @ w)(x, torch.randn(64, 32))
    assert gemmdb.inductor.stats()["products"][0]["ranges"] == {"m": [4, 256]}


def test_forward_and_lazily_compiled_backward(kit):
    seen = []
    w1, w2 = (torch.randn(*size, requires_grad=True) for size in ((64, 48), (48, 32)))
    x = torch.randn(8, 64)
    with force(lambda problem: seen.append(problem.text) or kit.ATEN):
        loss = kit.compiled(lambda x, w1, w2: (torch.relu(x @ w1) @ w2).sum(), x, w1, w2)
    forward = len(seen)
    # Outside of the block, in a thread of its own: what the forward was compiled with still counts.
    in_thread(loss.backward)
    assert forward == 2
    assert len(seen) == 5
    assert len(kit.problems()) == 5
    reference = torch.autograd.grad((torch.relu(x @ w1) @ w2).sum(), (w1, w2))
    kit.close(w1.grad, reference[0])
    kit.close(w2.grad, reference[1])


def test_compiling_in_a_worker_thread(kit):
    in_thread(lambda: kit.forced(kit.CPP, mlp(), torch.randn(8, 64), freezing=True))
    assert kit.lowered() == [kit.CPP, kit.CPP]


def in_thread(work):
    with ThreadPoolExecutor(1) as thread:
        thread.submit(work).result()


@pytest.mark.slow
def test_autocast_and_activation_checkpointing(kit):
    from torch.utils.checkpoint import checkpoint

    model, x = mlp(), torch.randn(8, 64)
    seen = []

    def step(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return checkpoint(model, x, use_reentrant=False).float().sum()

    with force(lambda problem: seen.append(problem) or kit.ATEN):
        kit.compiled(step, x).backward()
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    step(x).backward()
    for gradient, parameter in zip(found, model.parameters(), strict=True):
        kit.close(gradient.bfloat16(), parameter.grad.bfloat16())
    assert {problem.a.dtype for problem in seen} == {"bf16"}
    assert gemmdb.inductor.stats()["errors"] == []
