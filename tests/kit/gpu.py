"""What the tests on a GPU share: a config of each kernel, tensors, compiled programs, tables about this GPU.

Importing it does not import torch: where torch is missing, the tests on a GPU are skipped."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Measurement, Protocol, Status, Times

BASES: dict[str, dict[str, str | int]] = {
    "tile": {
        "block_m": 16, "block_n": 64, "block_k": 64, "group_m": 8, "split_k": 1, "reduce": "none", "swap": 0,
        "load": "pointer", "dequant": "cast", "warps": 4, "stages": 3,
    },
    "gemv": {"block_n": 8, "block_k": 256, "unroll": 1, "dequant": "cast", "warps": 4, "stages": 3},
    "narrow": {
        "block_m": 16, "block_n": 64, "block_k": 64, "split_k": 1, "swap": 0, "stagger": 1, "rows": "mask",
        "dequant": "cast", "warps": 4, "stages": 3,
    },
    "int4": {
        "block_m": 16, "block_n": 64, "block_k": 128, "split_k": 1, "scaled": "weights", "warps": 4, "stages": 3,
    },
    "groupwise": {
        "block_m": 16, "block_n": 64, "block_k": 128, "split_k": 1, "dequant": "cast", "warps": 4, "stages": 3,
    },
    "int4_skinny": {"block_n": 16, "activations": "registers", "next": "after", "warps": 4, "stages": 1},
    "persistent": {
        "block_m": 64, "block_n": 128, "block_k": 64, "group_m": 8, "swap": 0, "dequant": "cast", "resident": 1,
        "warps": 4, "stages": 3,
    },
    "scaled_blocks": {
        "block_m": 16, "block_n": 64, "block_k": 128, "group_m": 8, "split_k": 1, "swap": 0, "warps": 4, "stages": 3,
    },
    "batch": {
        "block_m": 16, "block_n": 64, "block_k": 64, "group_m": 8, "split_k": 1, "swap": 0, "warps": 4, "stages": 3,
    },
    "grouped": {
        "block_m": 16, "block_n": 64, "block_k": 64, "swap": 0, "load": "pointer", "flatten": 0, "resident": 2,
        "warps": 4, "stages": 3,
    },
}  # fmt: skip
"""A small config of each kernel: what a test does not name."""

ALGORITHM = {
    "algo": 66, "tile": 20, "stages": 35, "split_k": 1, "reduction": 0, "swizzle": 0, "custom": 1, "inner": 0,
    "cluster": 2,
}  # fmt: skip
"""The attributes of an algorithm of cuBLASLt on Hopper: what a test does not name."""

PROTOCOL = Protocol("graph", "cold", 10, 25, version=3)
"""How a build measures."""

alone = "PYTEST_XDIST_WORKER" not in os.environ
"""No other process of this test run uses the GPU."""


def make(kernel: str, **changes: str | int) -> Config:
    """The small config of a Triton kernel, with these parameters changed."""
    return Config.of("triton", kernel, **{**BASES[kernel], **changes})


def algorithm(**changes: int) -> Config:
    """An algorithm of cuBLASLt, with these attributes changed."""
    return Config.of("cublaslt", "matmul", **{**ALGORITHM, **changes})


def legal(config: Config, problem: Problem) -> bool:
    """Whether a config can run a problem on this GPU."""
    from gemmdb.devices import detect

    device = detect.cuda()
    assert device is not None
    return config.rejection(problem, device) is None


def measure(problem: Problem, configs: Sequence[Config], protocol: Protocol = PROTOCOL, rounds: int = 2) -> None:
    """Measure ATen and the configs as a build does: load each, check it against float64, and time it."""
    from gemmdb.generators.measure.cuda import session

    aten = session.load(problem, ATEN, protocol)
    assert aten.status is Status.OK, (problem.text, aten)
    for config in configs:
        loaded = session.load(problem, config, protocol)
        assert loaded.status is Status.OK, (problem.text, config.text, loaded, aten)
    timed = session.time_round(problem, configs, protocol, rounds)
    assert set(timed) == {ATEN, *configs}
    assert all(0 < sample < 1e5 for samples in timed.values() for sample in samples)


def measure_forms(problem: Problem, forms: Sequence[Config], least: int = 2) -> None:
    """Measure those that are legal, which are at `least` so many."""
    tried = [config for config in forms if legal(config, problem)]
    assert len(tried) >= least
    measure(problem, tried)


def served_as_one_choice(config: Config, problem: Problem) -> str:
    """Compile a problem with a config, which must be all that serves it. Returns the code. Skips the test where the
    config is not legal."""
    import pytest

    if not legal(config, problem):
        pytest.skip("not legal here")
    _, code = solved(problem, config)
    assert served() == [config.text]
    assert code.count("@triton_heuristics.template(") == (config.backend == "triton")
    return code


def anew() -> None:
    """Forget the graphs and GEMMs so far, within a test."""
    import torch

    import gemmdb.inductor

    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()


def default_numerics() -> None:
    """Set torch's precision and determinism as they are in a new process. A test that measures sets those of its
    problem, and a GEMM with others is another problem."""
    from gemmdb.generators.measure.program import set_numerics

    set_numerics(Problem.gemm("mm", m=1, n=1, k=1))


def rand(*sizes: int, dtype: str = "bfloat16") -> Any:
    """Normally distributed, on the GPU."""
    import torch

    return torch.randn(*sizes, device="cuda").to(getattr(torch, dtype))


def ints(*sizes: int) -> Any:
    """Uniform int8, on the GPU."""
    import torch

    return torch.randint(-127, 128, sizes, device="cuda", dtype=torch.int8)


def compiled(model: Callable[..., Any], *inputs: Any, config: Config, **how: Any) -> tuple[Any, str]:
    """What the model returns when all its GEMMs take `config`, and the code that Inductor made."""
    import torch
    from torch._inductor.utils import run_and_get_code

    import gemmdb.inductor

    with gemmdb.inductor.force(config):
        result, codes = run_and_get_code(torch.compile(model, **how), *inputs)
    stats = gemmdb.inductor.stats()
    assert (stats["benchmarked"], stats["errors"]) == (0, [])
    return result, "\n".join(codes)


def served() -> list[str]:
    """The configs that were lowered, one per GEMM."""
    import gemmdb.inductor

    entries = gemmdb.inductor.stats()["products"]
    return [entry["config"] for entry in entries for _ in range(entry["count"])]


def ends_of(total: int, count: int = 8, groups: int = 9) -> list[list[int]]:
    """Random ends of groups: of everything, of a part, of nothing, everything in one group."""
    drawn = random.Random(total)
    found = [sorted(drawn.choices(range(total + 1), k=groups)) for _ in range(count)]
    for ends in found[::2]:
        ends[-1] = total
    return [*found, [0] * groups, [0] * (groups - 1) + [total], [total] * groups]


def close(found: Any, wanted: Any, tolerance: float = 0.02) -> None:
    """Equal within `tolerance` times the largest value."""
    assert found.shape == wanted.shape
    if wanted.numel():
        found, wanted = found.detach().double(), wanted.detach().double()
        assert (found - wanted).abs().max() <= tolerance * wanted.abs().max()


def table(path: Path, times: Mapping[Problem, Mapping[Config, float]]) -> Path:
    """A table about this GPU: microseconds by problem and config; ATen takes 100."""
    from gemmdb.devices import detect
    from gemmdb.key.toolchain import installed
    from gemmdb.table.writer import Store

    device, toolchain, protocol = detect.cuda(), installed("cuda"), Protocol("graph", "cold", 10, 25, version=2)
    assert device is not None
    assert toolchain is not None
    with Store.open(path) as store:
        for problem, known in times.items():
            store.add(
                Measurement(
                    problem, config, device, protocol, toolchain, "test", Status.OK, Times(us, us, us, 25, 100.0)
                )
                for config, us in {ATEN: 100.0, **known}.items()
            )
        store.refresh()
    return path


def solved(problem: Problem, config: Config | None) -> tuple[Any, str]:
    """The result of a problem's program, compiled with `config`, or with what the tables say, and its code. Fails
    unless the result is right within the problem's tolerance against a higher precision."""
    import torch
    from torch._inductor.utils import run_and_get_code

    import gemmdb.inductor
    from gemmdb.generators.measure.correctness import poison, reference
    from gemmdb.generators.measure.operands import operands
    from gemmdb.generators.measure.program import Product, set_numerics
    from gemmdb.generators.measure.tolerance import tolerance

    set_numerics(problem)
    device = torch.device("cuda")
    made = operands(problem, device, 1)
    product = Product(problem, made)
    poison(problem, device)
    with torch.no_grad(), gemmdb.inductor.force(config) if config else contextlib.nullcontext():
        result, codes = run_and_get_code(torch.compile(product), *product.inputs)
    stats = gemmdb.inductor.stats()
    assert [entry["problem"] for entry in stats["products"]] == [problem.text]
    assert (stats["benchmarked"], stats["errors"], stats["uncovered"]) == (0, [], {})
    error = reference(problem, made).error(result)
    assert error <= tolerance(problem), (error, tolerance(problem))
    return result, str(codes[0])


def is_template(code: str) -> bool:
    """Whether the code has a template and calls no library."""
    called = "extern_kernels." in code.partition("async_compile.wait")[2]
    return code.count("@triton_heuristics.template(") == 1 and not called
