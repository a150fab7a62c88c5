"""During a compile on a GPU, GEMMs that no row settles are timed with cuBLASLt's algorithms."""

from dataclasses import replace

import pytest
import torch
import torch._inductor.config as inductor_config
from kit import gpu
from torch import nn

import gemmdb.inductor
from gemmdb import Policy
from gemmdb.devices import detect
from gemmdb.inductor.benchmark import algorithm_trial as trials
from gemmdb.inductor.benchmark import algorithms
from gemmdb.inductor.benchmark.limits import BUDGET, EXTENTS
from gemmdb.kernels.hardware import HOPPER
from gemmdb.settings import Settings
from gemmdb.table.measurement import Status
from gemmdb.table.reader import Table

POLICY = Policy(on_miss="aten", confirm=True, near=False, sku=False, model=False, horizontal=False)
PATIENT = Policy(on_miss="aten", confirm=True, confirm_s=60.0, near=False, sku=False, model=False, horizontal=False)


@pytest.fixture
def compiled(clean, kit, tmp_path, monkeypatch):
    """A function that compiles a model as a new process would, with the user's table alone. Returns gemmdb's stats."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("gemmdb.table.catalog.shipped_tables", lambda: tmp_path / "none")

    def run(model, *inputs, policy=POLICY, **patches):
        kit.anew()
        algorithms._KNOWN.clear()
        BUDGET.clear()
        gemmdb.inductor.enable(policy=policy)
        with torch.no_grad(), inductor_config.patch(**patches):
            kit.close(torch.compile(model)(*inputs), model(*inputs))
        stats = gemmdb.inductor.stats()
        assert stats["errors"] == []
        return stats

    return run


def linear(n=2048, k=7168, bias=False, dtype=torch.bfloat16):
    return nn.Linear(k, n, bias, device="cuda", dtype=dtype)


def rows():
    """The stored rows. There are none where other tests' processes held the GPU for as long as a search waits."""
    if not Settings.read().user_table.exists():
        assert not gpu.alone
        return []
    with Table.open(Settings.read().user_table) as table:
        return list(table.measurements())


def no_trial(*args):
    raise AssertionError("nothing is left to time")


def test_a_faster_algorithm_is_served_and_the_next_process_finds_it(kit, compiled, monkeypatch):
    """768 x 2048 x 7168, where ATen takes 43 us on an H100, and several algorithms 32."""
    model, x = linear(), kit.rand(768, 7168)
    state = torch.cuda.get_rng_state()
    stats = compiled(model, x)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    (product,) = stats["products"]
    print(f"{stats['seconds']['trial']:.3f} s for the trial: {product['evidence'].get('confirmed')}")
    assert {row.status for row in rows()} <= {Status.OK}
    timed = {row.config.name for row in rows()}
    assert timed == {"aten:default", "cublaslt:matmul"}
    if detect.cuda().capability == HOPPER and kit.alone:
        assert product["kernel"] == "matmul", product
        assert (product["rung"], product["note"]) == ("live", "")
        assert product["speedup_vs_aten"] > 1.1
    monkeypatch.setattr(trials, "race", no_trial)
    again = compiled(model, x)
    assert (again["rungs"], again["products"][0]["config"]) == ({"exact": 1}, product["config"])
    fused = compiled(lambda x: nn.functional.gelu(model(x)), x)
    if product["kernel"] == "matmul":
        assert fused["rungs"] == {"epilogue": 1}
    assert fused["products"][0]["config"] == product["config"]


def test_sizes_of_a_range_are_timed_and_the_next_process_serves_them(kit, compiled, monkeypatch):
    """With 2 to 4,096 rows, the sizes of long GEMMs are timed, beside the hint. All of the range is right."""
    model, policy = linear(8192, 4096), replace(POLICY, confirm_s=10.0)
    module = nn.Sequential(model, nn.GELU())

    def dynamic(rows):
        x = kit.rand(rows, 4096)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=4096)
        return x

    stats = compiled(module, dynamic(512), policy=policy)
    timed = {row.problem.m for row in rows()}
    assert {512, 4096, 2048} <= timed, timed
    assert min(timed) >= 512, "others are too short for their share of the calls"
    served = {one["m"][-1]: one["config"] for one in stats["products"][0]["evidence"].get("kernels", ())}
    print(f"{stats['seconds']['trial']:.3f} s for {sorted(timed)}: {served}")
    if kit.alone:  # Else times vary too much, and are taken again.
        monkeypatch.setattr(trials, "race", no_trial)
        again = compiled(module, dynamic(512), policy=policy)
        assert again["products"][0]["evidence"].get("kernels") == stats["products"][0]["evidence"].get("kernels")
    run = torch.compile(module)
    with torch.no_grad():
        for sizes in (512, 2, 77, 700, 1600, 2048, 3000, 4096):
            x = dynamic(sizes)
            kit.close(run(x), module(x))


def test_layers_that_differ_in_their_epilogues_share_a_trial(kit, compiled, monkeypatch):
    seen, real = [], trials.race
    monkeypatch.setattr(trials, "race", lambda *args: seen.append(args[0]) or real(*args))
    first, second = linear(), linear()
    compiled(lambda x: first(x).relu() * second(x).sigmoid(), kit.rand(768, 7168))
    assert len(seen) == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("m", [8, 48, 500])
def test_results_stay_right(kit, compiled, m, bias, dtype):
    compiled(linear(1536, 2048, bias, getattr(torch, dtype)), kit.rand(m, 2048, dtype=dtype), policy=PATIENT)
    assert {row.status for row in rows()} <= {Status.OK}
    assert {row.config.name for row in rows()} == {"aten:default", "cublaslt:matmul"}


def test_batches_and_integers(kit, compiled):
    q, k = kit.rand(16, 256, 128), kit.rand(16, 512, 128)
    compiled(lambda q, k: q @ k.transpose(1, 2), q, k, policy=PATIENT)
    compiled(torch._int_mm, kit.ints(256, 1024), kit.ints(1024, 512), policy=PATIENT)
    assert {row.problem.op for row in rows()} == {"bmm", "int_mm"}
    assert {row.status for row in rows()} <= {Status.OK}


@pytest.mark.parametrize("patch", ["cpp_wrapper", "triton.cudagraphs"])
def test_whatever_the_program_asks_of_inductor(kit, compiled, patch):
    compiled(linear(), kit.rand(768, 7168), policy=PATIENT, **{patch: True})
    assert "cublaslt:matmul" in {row.config.name for row in rows()}


def test_without_confirming_nothing_is_timed(kit, compiled, monkeypatch):
    monkeypatch.setattr(trials, "race", no_trial)
    compiled(linear(), kit.rand(768, 7168), policy=Policy(on_miss="aten", confirm=False))


def test_with_little_memory_free_nothing_is_timed(kit, compiled, monkeypatch):
    monkeypatch.setattr(trials.trial, "FREE_BYTES", torch.cuda.mem_get_info()[1] + 1)
    stats = compiled(linear(), kit.rand(768, 7168))
    assert stats["products"][0]["config"] == "aten:default"
    assert not Settings.read().user_table.exists()


def test_memory_is_free_again(kit, compiled):
    model, x = linear(), kit.rand(768, 7168)
    before = torch.cuda.memory_allocated()
    compiled(model, x)
    assert torch.cuda.memory_allocated() <= before + 2**26  # The compiled graph's own.


@pytest.mark.timed
def test_a_search_takes_little_time(kit, compiled):
    sizes = (1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192)
    layers = [linear(n, 4096) for n in sizes]
    compiled(layers[0], kit.rand(512, 4096), policy=PATIENT)  # It loads the library's kernels.
    stats = compiled(lambda x: torch.cat([layer(x) for layer in layers], 1), kit.rand(512, 4096), policy=PATIENT)
    searched = len({row.problem.n for row in rows()})
    assert searched >= 6, stats["products"]
    assert stats["seconds"]["trial"] < 2 * EXTENTS[0].expected_s * searched  # Some kernels are loaded.
