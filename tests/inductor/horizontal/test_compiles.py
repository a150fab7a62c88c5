"""Real compiles with groups, on a CPU, where the lowering takes the GEMMs of a group one by one."""

import pytest
import torch
from kit.gemm_programs import ROWS
from kit.horizontal import fp8_linear, half, quantised, session

import gemmdb.inductor
from gemmdb.inductor.benchmark import horizontal as fusing
from gemmdb.inductor.benchmark import rules
from gemmdb.inductor.benchmark.confirm import Confirmation
from gemmdb.inductor.benchmark.horizontal import HorizontalJob, Timed
from gemmdb.inductor.entry import active
from gemmdb.inductor.lower import triton
from gemmdb.inductor.lower.adapter import templates
from gemmdb.inductor.match import horizontal_members as members

linear = torch.nn.functional.linear


@torch.library.custom_op("gemmdb_tests::turn_", mutates_args=("q", "k"))
def turn_(q: torch.Tensor, k: torch.Tensor) -> None:
    """As rotary embeddings of serving engines do: write to both."""
    q.mul_(2)
    k.mul_(3)


@pytest.fixture
def compiled(monkeypatch):
    """A function that compiles with every group fused, and returns (how many groups there were, gemmdb's stats)."""
    monkeypatch.setattr(members, "_GPUS", ("cpu", "cuda"))
    monkeypatch.setattr(rules, "confirm_rejection", lambda query, policy: None)
    monkeypatch.setattr(rules, "device_rejection", lambda device: None)
    monkeypatch.setattr(fusing, "_KNOWN", {})
    monkeypatch.setattr(HorizontalJob, "begin", lambda job, carry_out: None)
    monkeypatch.setattr(HorizontalJob, "finish", lambda job: Timed(5.0, 10.0))
    made = []
    rewrite = fusing.rewrite
    monkeypatch.setattr(fusing, "rewrite", lambda *args: made.append(rewrite(*args)))

    def run(function, *tensors, numbers=((),)):
        """`numbers`: what each call also takes."""
        torch._dynamo.reset()
        gemmdb.inductor.enable()
        gemmdb.inductor.reset_stats()
        with active.use(session(us=0.1)), torch.no_grad():
            faster = torch.compile(function)
            for more in numbers:
                found = faster(*(one.clone() for one in tensors), *more)
                wanted = function(*(one.clone() for one in tensors), *more)
                torch.testing.assert_close(found, wanted, rtol=0.05, atol=0.15)
        stats = gemmdb.inductor.stats()
        gemmdb.inductor.disable()
        assert stats["errors"] == []
        return len(made), stats

    return run


def small(*sizes):
    return half(*sizes) / 8


X, Q, K, V = half(8, 64), *(small(64, 64) for _ in range(3))


def gated(x, first, second):
    return linear(x, first).relu() * linear(x, second)


def test_a_kernel_that_cannot_be_generated(compiled):
    count, stats = compiled(gated, X, Q, K)
    assert count == 1
    assert all("not in one kernel" in product["note"] for product in stats["products"])


def copied(x, first, second):
    """Of one GEMM alone, Inductor would store the activation as it reads it: by columns."""
    return gated(x.t().contiguous() * 2, first, second)


def test_a_computed_activation_is_stored_as_the_kernel_expects_it(compiled, monkeypatch):
    seen = []

    def stop(kernel, operands, *rest, **options):
        seen.append([list(map(int, one.get_stride())) for one in operands])
        raise triton.Refused("that far")

    monkeypatch.setattr(templates, "gemm", stop)
    count, stats = compiled(copied, half(64, 8), Q, K)
    assert count == 1
    assert all(product["note"].endswith("that far") for product in stats["products"])
    assert seen == [[[64, 1], [1, 64], [1, 64]]]


def fp8(x, first, scale, second, other, *biases):
    biases = biases or (None, None)
    return fp8_linear(x, first, scale, biases[0]).relu() + fp8_linear(x, second, other, biases[1])


FP8, BIASES = (*quantised(half(64, 64) / 8), *quantised(half(64, 64) / 8)), (half(64), half(64))


@ROWS
def test_fp8_one_by_one_computes_the_same(compiled):
    """With biases and without, which are two groups of one activation."""
    count, stats = compiled(lambda x, *given: (fp8(x, *given[:4]), fp8(x, *given)), half(2, 4, 64), *FP8, *BIASES)
    assert count == 2
    assert all("not in one kernel" in product["note"] for product in stats["products"])


@ROWS
def test_a_kernel_in_fp8_gets_the_scales_of_the_rows_once(compiled, monkeypatch):
    seen = []

    def stop(kernel, operands, out, **options):
        seen.append(([tuple(map(int, one.get_size())) for one in operands], kernel.constants, out[0]))
        raise triton.Refused("that far")

    monkeypatch.setattr(templates, "gemm", stop)
    compiled(fp8, half(8, 64), *FP8, *BIASES)
    ((sizes, constants, dtype),) = seen
    assert sizes == [(8, 64), *[(64, 64)] * 2, *[(1, 64)] * 2, *[(64,)] * 2, (8, 1)]
    assert {name: constants[name] for name in ("PARTS", "SCALED", "BIASED", "A_SCALED", "ONE_SCALE")} == {
        "PARTS": 2, "SCALED": True, "BIASED": True, "A_SCALED": True, "ONE_SCALE": False,
    }  # fmt: skip
    assert dtype == torch.bfloat16


def test_an_operand_that_begins_at_a_symbolic_place_stays_alone(compiled):
    """Others of its graph become one kernel."""

    def model(x, q, k, memory, place):
        part = memory.narrow(0, place, 8)
        return linear(part, q).sin(), linear(part, k).sin(), gated(x, q, k)

    count, _ = compiled(model, X, Q, K, half(32, 64), numbers=[(16,), (8,), (20,)])
    assert count == 3  # Two where the place is known, at the first call, and one where it may be any.


def test_what_one_kernel_takes_over_is_not_confirmed(compiled, monkeypatch):
    seen = []
    decide = Confirmation.decide
    monkeypatch.setattr(Confirmation, "decide", lambda self, pairs: seen.extend(pairs) or decide(self, pairs))
    count, _ = compiled(lambda x, q, k, v: linear(gated(x, q, k), v).sin(), X, Q, K, V)
    assert (count, len(seen)) == (1, 1)


def turned(x, q, k):
    q, k = linear(x, q).view(8, 4, 16), linear(x, k).view(8, 4, 16)
    turn_(q, k)
    return q + 1, k + 1


def test_what_a_custom_operator_writes_to_keeps_its_memory(compiled):
    assert compiled(turned, X, Q, K)[0] == 0
