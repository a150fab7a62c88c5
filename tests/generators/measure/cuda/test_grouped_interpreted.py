"""The kernel of groups in Triton's interpreter, on a CPU: right for random splits, and zero beyond the last group."""

import importlib.util
import json
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from kit.gpu import make
from kit.inductor import ROOT, run

from gemmdb import Config, Problem
from gemmdb.generators.measure.cuda.render import plan

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
GROUPS = 5
SCALES = (40,), (GROUPS, 48)


def cases() -> Iterator[tuple[Problem, Config]]:
    """Every way to load and to turn the operands. The interpreter multiplies fp16, and no bf16."""
    for ragged, load, swap, layout in product("mk", ("pointer", "tma"), (0, 1), ("nt", "nn", "tn")):
        problem = Problem.gemm(
            "grouped_mm", m=40, n=48, k=80, groups=GROUPS, ragged=ragged, layout=layout, dtype="fp16"
        )
        if load == "tma" and (layout == "tn") != (ragged == "k"):
            continue
        for flatten in (0, 1) if load == "tma" and ragged == "m" else (0,):
            yield problem, make("grouped", load=load, swap=swap, flatten=flatten, block_n=32, block_k=32)
        for slices in (2, 3) if ragged == "m" else ():
            deep = problem.resized(problem.m, problem.n, 176)
            yield deep, make("grouped", load=load, swap=swap, block_n=32, block_k=16, split_k=slices)
    for (load, flatten), swap, k in product((("pointer", 0), ("tma", 0), ("tma", 1)), (0, 1), (80, 64)):
        problem = Problem.gemm("grouped_mm", m=40, n=48, k=k, groups=GROUPS, dtype="fp8_e4m3")
        side = {"block_n": 64} if swap else {"block_m": 64, "block_n": 32}  # Sums of each step are added in fp32.
        yield problem, make("grouped", load=load, swap=swap, flatten=flatten, block_k=32, **side)
        if not flatten:
            deep = problem.resized(problem.m, problem.n, 2 * k)
            yield deep, make("grouped", load=load, swap=swap, block_k=32, split_k=2, **side)


def split(total: int, number: int) -> list[int]:
    """Random ends; every other time everything is divided."""
    ends = sorted(random.Random(number).choices(range(total + 1), k=GROUPS))
    return ends if number % 2 else [*ends[:-1], total]


def check(path: str, text: str, config: str, ends: list[int]) -> dict[str, Any]:
    """The largest error of a kernel, as a share of the largest value, and the largest value beyond the last group.
    Called in a process of its own."""
    import torch

    from gemmdb.generators.measure.operands import DTYPES

    problem = Problem.parse(text)
    planned = plan(problem, Config.parse(config))
    unit = planned.launches[0].unit
    Path(path).write_text(unit.source)
    spec = importlib.util.spec_from_file_location("unit", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    a, b = (torch.randn(sizes).to(DTYPES[problem.a.dtype]) for sizes in problem.shapes[:2])
    a = a if problem.a.row_major else a.mT.contiguous().mT
    b = b if problem.b.row_major else b.mT.contiguous().mT
    out = torch.full(problem.shapes[2], float("nan")).to(DTYPES[problem.out])
    scale_a, scale_b = (torch.rand(sizes) + 0.5 if problem.scaled else torch.ones(sizes) for sizes in SCALES)
    scale_a[ends[-1] :] = float("inf")  # Nobody computes row scales that belong to no group.
    names = {"A": a, "B": b, "out": out, "offsets": torch.tensor(ends, dtype=torch.int32), "apart": b.stride(0)}
    names |= {"scale_a": scale_a, "scale_b": scale_b}
    sums, counters = torch.full((planned.partials,), float("nan")), torch.zeros(planned.counters, dtype=torch.int32)
    names |= {"partials": sums, "counters": counters}
    names |= {prefix + name: getattr(problem, name.lower()) for name in "MNK" for prefix in ("", "arg_")}
    for _ in range(2 if planned.counters else 1):  # The second launch finds the counters as the first left them.
        module.kernel[(7, 1, 1)](*(names[name] for name, _ in unit.args))
    wanted = torch.zeros(out.shape, dtype=torch.float64)
    for group, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if problem.ragged == "m":
            exact = a[start:end].double() @ b[group].double()
            wanted[start:end] = exact * scale_a[start:end, None] * scale_b[group]
        else:
            wanted[group] = a[:, start:end].double() @ b[start:end].double()
    rows = ends[-1] if problem.ragged == "m" else len(out)
    largest = float(wanted.abs().max())
    return {
        "error": float((out.double() - wanted)[:rows].abs().max()) / largest if largest else 0.0,
        "beyond": float(out[rows:].abs().max()) if rows < len(out) else 0.0,
        "sliced": bool((~sums.isnan()).any()),
        "counted": int(counters.abs().sum()),
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What `check` says of each case and split. Triton looks for the interpreter when it is imported."""
    asked = [
        (problem.text, config.text, split(getattr(problem, problem.ragged), number))
        for problem, config in cases()
        for number in range(4)
    ]
    file = tmp_path_factory.mktemp("kernels") / "asked.json"
    file.write_text(json.dumps(asked))
    program = f"""
        import {Path(__file__).stem} as own
        asked = json.load(open({str(file)!r}))
        print(json.dumps([own.check(f"{file}-{{place}}.py", *one) for place, one in enumerate(asked)]))
    """
    path = f"{ROOT}:{ROOT / 'tests'}:{Path(__file__).parent}"
    answers = run(program, {"TRITON_INTERPRET": "1", "PYTHONPATH": path})
    return [{"problem": p, "config": c, "ends": e} | one for (p, c, e), one in zip(asked, answers, strict=True)]


def test_every_split_is_right(found: list[dict[str, Any]]) -> None:
    assert len(found) >= 100
    assert [one for one in found if not one["error"] < 0.008] == []


def test_what_is_beyond_the_last_group_is_zero_unless_it_is_not_stored(found: list[dict[str, Any]]) -> None:
    stored = [one for one in found if "flatten=0" in one["config"]]
    assert [one for one in stored if one["beyond"] != 0] == []


def test_k_is_split_where_the_last_round_has_few_tiles(found: list[dict[str, Any]]) -> None:
    may = [one for one in found if "split_k" in one["config"]]
    sliced = [one for one in may if one["sliced"]]
    assert 0.2 < len(sliced) / len(may) < 0.8
    assert [one for one in found if one["counted"]] == []
    assert [one for one in found if one["sliced"] and one not in sliced] == []
