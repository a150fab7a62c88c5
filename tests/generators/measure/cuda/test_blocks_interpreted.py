"""The kernel of fp8 with block scales in Triton's interpreter, on a CPU: right for every way to cut and turn it."""

import importlib.util
import json
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


def cases() -> Iterator[tuple[Problem, Config]]:
    """Slices of one length, of several, and some without a step."""
    problem = Problem.gemm("scaled_mm", m=20, n=144, k=1024, scales="block")
    for swap, blocks in product((0, 1), (0, 1, 2, 4)):
        ahead = {"blocks": blocks} if blocks else {}
        for split in (1, 2) if blocks == 4 else (1, 3, 4):
            yield problem, make("scaled_blocks", swap=swap, split_k=split, **ahead)
    yield problem.resized(4, 80, 1280), make("scaled_blocks", split_k=8, blocks=1)


def check(path: str, text: str, config: str) -> dict[str, Any]:
    """The largest error of a kernel, as a share of the largest value. Called in a process of its own."""
    import torch

    from gemmdb.generators.measure.correctness import reference
    from gemmdb.generators.measure.operands import operands
    from gemmdb.generators.measure.tolerance import tolerance

    problem = Problem.parse(text)
    planned = plan(problem, Config.parse(config))
    (launch,) = planned.launches
    Path(path).write_text(launch.unit.source)
    spec = importlib.util.spec_from_file_location("unit", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = operands(problem, torch.device("cpu"), 1)
    out = torch.full((problem.m, problem.n), float("nan"), dtype=torch.bfloat16)
    names: dict[str, Any] = {**made.named, "out": out}
    names["partials"] = torch.full((planned.partials,), float("nan"))
    names["counters"] = torch.zeros(planned.counters, dtype=torch.int32)
    names |= {prefix + name: getattr(problem, name.lower()) for name in "MNK" for prefix in ("", "arg_")}
    for _ in range(2 if planned.counters else 1):  # The second launch finds the counters as the first left them.
        module.kernel[launch.grid](*(names[name] for name, _ in launch.unit.args))
    return {"error": reference(problem, made).error(out), "tolerance": tolerance(problem)}


def test_every_kernel_is_right(tmp_path: Path) -> None:
    asked = [(problem.text, config.text) for problem, config in cases()]
    file = tmp_path / "asked.json"
    file.write_text(json.dumps(asked))
    program = f"""
        import {Path(__file__).stem} as own
        asked = json.load(open({str(file)!r}))
        print(json.dumps([own.check(f"{file}-{{place}}.py", *one) for place, one in enumerate(asked)]))
    """
    path = f"{ROOT}:{ROOT / 'tests'}:{Path(__file__).parent}"
    found = run(program, {"TRITON_INTERPRET": "1", "PYTHONPATH": path})
    wrong = [(case, one) for case, one in zip(asked, found, strict=True) if not one["error"] <= one["tolerance"]]
    assert wrong == []
