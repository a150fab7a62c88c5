"""The bits of a row on a GPU: equal in kernels of one summation order, and with the policy for all numbers of rows."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmdb.inductor
from gemmdb import Problem
from gemmdb.devices import detect
from gemmdb.kernels.config import Config
from gemmdb.kernels.triton.sum_order import SumOrder, possible, sum_order

ROWS = (1, 3, 8, 16, 17, 64, 200, 512)
DEPTHS = (4096, 776)
"""K of whole steps, and K whose last step is masked."""
VARIANTS: list[tuple[str, dict[str, str | int]]] = [
    ("tile", {}), ("tile", {"block_k": 32}), ("tile", {"block_k": 256, "block_n": 32}), ("tile", {"swap": 1}),
    ("tile", {"swap": 1, "block_k": 128, "stages": 5}), ("tile", {"swap": 1, "warps": 2}),
    ("tile", {"block_m": 64, "load": "tma"}), ("tile", {"block_m": 128, "block_n": 128, "warps": 8}),
    ("tile", {"block_m": 64, "warps": 2, "block_n": 32}), ("narrow", {"stagger": 0}),
    ("narrow", {"stagger": 0, "swap": 1, "rows": "wrap"}), ("persistent", {}), ("persistent", {"block_n": 256}),
    ("tile", {"block_n": 16, "block_k": 128}), ("tile", {"swap": 1, "split_k": 2, "reduce": "fixup"}),
    ("tile", {"swap": 1, "slices": 2}), ("tile", {"block_m": 64, "slices": 2}),
    ("tile", {"block_m": 128, "block_n": 128, "warps": 8, "slices": 2}),
    ("tile", {"block_m": 64, "split_k": 2, "reduce": "fixup", "block_k": 32}),
    ("narrow", {"stagger": 0, "swap": 1, "split_k": 2}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def installed(clean: None) -> None:
    """No cache, and nothing enabled."""


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("k", DEPTHS)
def test_kernels_of_one_order_give_the_same_bits(kit: Any, make: Callable[..., Config], k: int, dtype: str) -> None:
    device = detect.cuda()
    assert device is not None
    name = {"bfloat16": "bf16", "float16": "fp16"}[dtype]
    problem = Problem.gemm("mm", m=40, n=512, k=k, dtype=name)
    x, w = kit.rand(40, k, dtype=dtype), kit.rand(512, k, dtype=dtype)
    found: dict[SumOrder, dict[Config, Any]] = {}
    for kernel, changes in VARIANTS:
        config = make(kernel, **changes)
        order = sum_order(config, problem, device)
        assert order is not None
        if config.rejection(problem, device) is not None:
            continue
        kit.anew()
        found.setdefault(order, {})[config] = kit.compiled(lambda x, w: x @ w.t(), x, w, config=config)[0]
        assert kit.served() == [config.text]
    assert {order.unit for order in found} == {order.unit for order in possible(problem, device)}
    assert {order.slices for order in found} == {1, 2}
    for results in found.values():
        wanted = next(iter(results.values()))
        assert [config.text for config, result in results.items() if not torch.equal(result, wanted)] == []


def program() -> tuple[Callable[..., Any], Callable[[int], Any]]:
    """A GEMM alone, one with an epilogue, one with a bias, and one with a long K; and its input by the number of
    rows."""
    torch.manual_seed(0)
    sizes = (1024, 776), (6144, 776), (1024,), (4096, 14336)
    w, wide, bias, down = (torch.randn(*one, device="cuda").bfloat16() for one in sizes)
    x = torch.randn(max(ROWS), 776, device="cuda").bfloat16()

    def run(x: Any) -> Any:
        plain = torch.nn.functional.linear(x, w / 16)
        cut = torch.nn.functional.linear(x.repeat(1, 19)[:, :14336], down / 64)
        biased = torch.nn.functional.linear(x, w / 16, bias)
        return plain, torch.nn.functional.gelu(x @ wide.t() / 16), biased, cut

    return run, lambda rows: x[:rows].clone()


@pytest.fixture
def static() -> dict[int, list[Any]]:
    """The first rows of the program's results, compiled for each number of rows."""
    run, made = program()
    found = {}
    for rows in ROWS:
        torch._dynamo.reset()
        gemmdb.inductor.reset_stats()
        with torch.no_grad():
            compiled = torch.compile(run, backend="gemmdb", dynamic=False, options={"gemmdb.batch_invariant": True})
            found[rows] = [one[0].clone() for one in compiled(made(rows))]
        stats = gemmdb.inductor.stats()
        assert stats["batch_invariant"] == {"covered": 4, "not_covered": {}}
        assert (stats["benchmarked"], stats["errors"]) == (0, [])
    return found


def test_the_first_row_is_the_same_for_all_numbers_of_rows(static: dict[int, list[Any]], kit: Any) -> None:
    run, made = program()
    for place, wanted in enumerate(static[1]):
        agree = {rows: torch.equal(found[place], wanted) for rows, found in static.items()}
        assert all(agree.values()), agree
        kit.close(wanted, run(made(1).double().bfloat16())[place][0])


@pytest.mark.parametrize("end", [512, None])
def test_a_symbolic_number_of_rows_gives_these_bits(static: dict[int, list[Any]], end: int | None) -> None:
    run, made = program()
    x = made(64)
    torch._dynamo.mark_dynamic(x, 0, **({} if end is None else {"min": 2, "max": end}))
    with torch.no_grad():
        compiled = torch.compile(run, backend="gemmdb", options={"gemmdb.batch_invariant": True})
        compiled(x)
        with torch._dynamo.config.patch(error_on_recompile=True):
            found = {rows: compiled(made(rows)) for rows in ROWS if rows > 1}
    for rows, results in found.items():
        for one, wanted in zip(results, static[rows], strict=True):
            assert torch.equal(one[0], wanted), rows
    stats = gemmdb.inductor.stats()
    assert stats["batch_invariant"]["not_covered"] == {}
    kernels = [{part["config"] for part in one["evidence"].get("kernels", ())} for one in stats["products"]]
    assert any(len(one) > 1 for one in kernels)
