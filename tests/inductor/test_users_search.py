"""What the user asked of Inductor stays true: with autotuning on, a GEMM that no table answers is searched by
Inductor as without gemmdb, and `stats()` says so."""

import functools
from unittest import mock

import pytest
import torch
import torch._inductor.config as inductor_config
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import select_algorithm
from torch._inductor.utils import run_and_get_code

import gemmdb.inductor
from gemmdb.inductor import force

pytestmark = pytest.mark.slow
COUNTED = ("select_algorithm_autotune", "cpp_templated_kernel_counter", "cpp_epilogue_fusion_counter")
SEARCH = {"max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN", "freezing": True, "epilogue_fusion": True}


@pytest.fixture(autouse=True)
def slow_aten():
    """Every search times its choices, and then finds ATen the slowest, whatever this machine does meanwhile."""

    def lookup(self, choices, name, key, benchmark, *args, **kwargs):
        timed = {} if benchmark is None else benchmark(choices)
        slow = select_algorithm.ExternKernelCaller
        return {choice: 1000.0 if isinstance(choice, slow) else 1.0 for choice in timed}

    with mock.patch.object(select_algorithm.AlgorithmSelectorCache, "lookup", lookup):
        yield


class Int8(nn.Module):
    """A linear with an int8 weight and a scale, as Inductor's own pattern knows it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.randint(-9, 9, (64, 64), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(64).bfloat16())

    def forward(self, x):
        return nn.functional.linear(x, self.weight.to(x.dtype)) * self.scale


PROGRAMS = {
    "linear": (nn.Linear(64, 64), torch.randn(8, 64)),
    "no bias": (nn.Linear(64, 64, bias=False), torch.randn(8, 64)),
    "epilogue": (nn.Sequential(nn.Linear(64, 64), nn.ReLU()), torch.randn(2, 8, 64)),
    "bf16": (nn.Linear(64, 64).bfloat16(), torch.randn(8, 64).bfloat16()),
    "int8": (Int8(), torch.randn(8, 64).bfloat16()),
    "batch": (lambda x: torch.bmm(x, x.transpose(1, 2)), torch.randn(4, 32, 64)),
}


class Shared(nn.Module):
    """An embedding and a linear with one weight."""

    def __init__(self):
        super().__init__()
        self.embedding, self.linear = nn.Embedding(48, 64), nn.Linear(64, 48)
        self.linear.weight = self.embedding.weight

    def forward(self, x):
        return self.linear(self.embedding(x))


def with_nan_bias(x):
    """Beta is 0, so the bias does not count."""
    return torch.addmm(torch.full((64,), float("nan")), x, torch.ones(64, 64), beta=0, alpha=0.5)


def transposed(x):
    return (x @ x.t()).relu().t() + x[:, :1]


LINEAR, TAIL = nn.Linear(64, 64), torch.randn(8, 64)
SIZES = ((1, 64, 64), (8, 64, 1), (2, 65, 63))
ACTIVATIONS = (nn.GELU(), nn.Hardtanh())
JOINS = (torch.add, torch.mul)
FORMS = {
    "sizes": [(nn.Linear(k, n), torch.randn(rows, k)) for rows, k, n in SIZES],
    "activations": [(nn.Sequential(LINEAR, act), torch.randn(8, 64)) for act in ACTIVATIONS],
    "joins": [(lambda x, join=join: join(LINEAR(x), TAIL), torch.randn(8, 64)) for join in JOINS],
    "layouts": [(LINEAR, torch.randn(64, 8).t()), (transposed, torch.randn(64, 64))],
    "others": [(Shared(), torch.tensor([[1, 2, 4, 5], [4, 3, 2, 9]])), (with_nan_bias, torch.randn(8, 64))],
}  # fmt: skip


@functools.cache
def without(name):
    """What `searched` returns of PROGRAMS[name] without gemmdb."""
    return searched(*PROGRAMS[name])


def searched(program, x):
    """The code of a program, and what Inductor counted for it."""
    torch._dynamo.reset()
    counters.clear()
    with torch.no_grad(), inductor_config.patch(SEARCH):
        _, codes = run_and_get_code(torch.compile(program), x)
    lines = [line.partition("#")[0] for code in codes for line in code.splitlines()]
    return lines, {name: counters["inductor"][name] for name in COUNTED}


MISSED = [*((name, "aten") for name in PROGRAMS), ("linear", "live"), ("int8", "live"), ("batch", "live")]


@pytest.mark.parametrize(("name", "on_miss"), MISSED)
def test_a_missed_gemm_is_searched_by_inductor(kit, name, on_miss):
    program, x = PROGRAMS[name]
    plain, counted = without(name)
    assert counted["select_algorithm_autotune"] == (name != "int8")
    gemmdb.inductor.enable(policy=gemmdb.Policy(on_miss=on_miss, live_s=1.0))
    found, again = searched(program, x)
    assert again == counted
    assert found == plain
    stats, entry = gemmdb.inductor.stats(), kit.only()
    assert (entry["rung"], entry["config"]) == ("aten", "inductor:search")
    assert "Inductor searches" in entry["note"]
    assert (stats["benchmarked"], stats["errors"]) == (counted["select_algorithm_autotune"], [])


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_a_gemm_compiles_as_without_gemmdb(name):
    """The forms that PyTorch's own tests of its search on CPUs have."""
    programs, inputs = zip(*FORMS[name], strict=True)

    def each(inputs):
        return [program(x) for program, x in zip(programs, inputs, strict=True)]

    plain = searched(each, inputs)
    gemmdb.inductor.enable(on_miss="aten")
    assert searched(each, inputs) == plain
    stats = gemmdb.inductor.stats()
    assert (bool(stats["products"]), stats["errors"]) == (True, [])


@pytest.mark.parametrize("name", ["linear", "int8", "batch"])
def test_a_verdict_for_aten_is_an_answer(name, kit):
    program, x = PROGRAMS[name]
    with force(kit.ATEN):
        _, counted = searched(program, x)
    assert counted["select_algorithm_autotune"] == 0
    assert kit.lowered() == [kit.ATEN]


def test_a_gemm_whose_kernel_is_impossible_is_searched(kit):
    """The table's config is not for such a GEMM, so nothing answers it."""
    program, x = PROGRAMS["batch"]
    plain, counted = without("batch")
    with force(kit.CPP):
        found, again = searched(program, x)
    assert (found, again) == (plain, counted)
    entry = kit.only()
    assert entry["config"] == "inductor:search"
    assert entry["note"]


def test_without_autotuning_nothing_is_searched(kit):
    gemmdb.inductor.enable(on_miss="aten")
    stats = kit.checked(*PROGRAMS["linear"], freezing=True)
    assert (stats["benchmarked"], kit.lowered(stats)) == (0, [kit.ATEN])
