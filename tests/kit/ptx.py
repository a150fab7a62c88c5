"""Our Triton kernels in Triton's interpreter, on a CPU: with the few PTX instructions that they contain, and with bf16
in products, both of which the interpreter lacks.

Import it in a process of its own, with TRITON_INTERPRET=1 set."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from gemmdb import Config, Problem
from gemmdb.generators.measure.correctness import reference
from gemmdb.generators.measure.cuda.render import plan
from gemmdb.generators.measure.operands import operands

_product = InterpreterBuilder.create_dot
_load = InterpreterBuilder.create_masked_load


def _masked_load(self: Any, places: Any, mask: Any, *rest: Any) -> Any:
    """In the interpreter, a comparison of a loop's counter is Python's, whose result is no int1 to Triton 3.9."""
    return _load(self, places, TensorHandle(mask.data.astype(bool), tl.int1), *rest)


def error(problem: Problem, config: Config, folder: Path) -> float:
    """The error of a config's kernel on random operands, as `Reference.error` counts it."""
    made, planned = operands(problem, torch.device("cpu"), 1), plan(problem, config)
    (launch,) = planned.launches
    out = torch.full((problem.m, problem.n), float("nan"), dtype=made.a.dtype)
    names: dict[str, Any] = {**made.named, "out": out, "arg_M": problem.m, "arg_N": problem.n, "arg_K": problem.k}
    names |= {"partials": torch.empty(max(planned.partials, 1))}
    names |= {"counters": torch.zeros(max(planned.counters, 1), dtype=torch.int32)}
    names |= {"M": problem.m, "N": problem.n, "K": problem.k}
    path = folder / f"unit_{launch.unit.key}.py"
    path.write_text(launch.unit.source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.kernel[launch.grid](*(names[name] for name, _ in launch.unit.args))
    return reference(problem, made).error(out)


class _Results:
    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def get_result(self, place: int) -> Any:
        return self.values[place]


def _inline(self: Any, code: str, constraints: str, args: Any, types: Any, pure: bool, pack: int) -> _Results:
    if not code:
        assert constraints == "=f,0", "the result is the input"
        return _Results(list(args))
    inputs = [arg.data.astype(np.int32).view(np.uint32) for arg in args]
    registers = {f"${place}": value for place, value in enumerate(inputs, len(types))}
    for line in re.sub(r"[{}]", "", code).split(";"):
        name, _, rest = line.strip().partition(" ")
        if name and not name.startswith(".reg"):
            target, *sources = (part.strip() for part in rest.split(","))
            registers[target] = _instruction(name, [_value(registers, source) for source in sources])
    found = [np.broadcast_to(registers[f"${place}"], inputs[0].shape) for place in range(len(types))]
    return _Results([TensorHandle(one.astype(np.uint32).view(np.int32).copy(), tl.int32) for one in found])


def _value(registers: dict[str, Any], source: str) -> Any:
    return np.uint32(int(source, 0)) if re.fullmatch(r"0x[0-9A-Fa-f]+|\d+", source) else registers[source]


def _instruction(name: str, values: list[Any]) -> Any:
    if name == "mov.b32":
        return values[0]
    if name == "shr.u32":
        return values[0] >> values[1]
    if name == "shl.b32":
        return values[0] << values[1]
    if name == "and.b32":
        return values[0] & values[1]
    if name == "lop3.b32":
        assert values[3] in (0xEA, 0x6A), "(a & b) | c, or ^ c"
        both = values[0] & values[1]
        return both | values[2] if values[3] == 0xEA else both ^ values[2]
    if name == "prmt.b32":
        return _permuted(*values)
    kind = name.removeprefix("fma.rn.")
    assert kind in ("bf16x2", "f16x2"), name
    halves = []
    for shift in (0, 16):
        a, b, c = (_floats((one >> np.uint32(shift)) & np.uint32(0xFFFF), kind) for one in values)
        halves.append(_bits(a * b + c, kind))
    return halves[0] | (halves[1] << np.uint32(16))


def _permuted(first: Any, second: Any, selector: Any) -> Any:
    result = np.uint32(0)
    for byte in range(4):
        place = (selector >> np.uint32(4 * byte)) & np.uint32(7)
        source = np.where(place < 4, first, second)
        result = result | (
            ((source >> (np.uint32(8) * (place % np.uint32(4)))) & np.uint32(255)) << np.uint32(8 * byte)
        )
    return result


def _floats(bits: Any, kind: str) -> Any:
    bits = np.atleast_1d(np.asarray(bits))
    if kind == "bf16x2":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return bits.astype(np.uint16).view(np.float16).astype(np.float64)


def _bits(values: Any, kind: str) -> Any:
    dtype = torch.bfloat16 if kind == "bf16x2" else torch.float16
    rounded = torch.from_numpy(values).to(dtype).view(torch.int16).numpy()
    return rounded.view(np.uint16).astype(np.uint32)


def _dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
    return _product(self, _wide(a), _wide(b), *rest)


def _wide(tile: Any) -> Any:
    """A tile of floats as fp32."""
    data = tile.data
    if tile.dtype.scalar == tl.bfloat16:  # The interpreter keeps its bits.
        data = (data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return TensorHandle(data.astype(np.float32), tl.float32)


InterpreterBuilder.create_inline_asm = _inline
InterpreterBuilder.create_dot = _dot
InterpreterBuilder.create_masked_load = _masked_load
