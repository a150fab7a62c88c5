"""PyTorch's own lookup table: `torch._inductor.config.lookup_table.table`, a dictionary from a GEMM to the configs that
Inductor's autotuning is limited to.

Inductor reads it with `LookupTableChoices` and `mode="max-autotune"`, on NVIDIA GPUs. A key contains the GPU, the
operands' dtypes, sizes and strides, and the op. A value lists keyword arguments of a template.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemmdb.exchange.content import Tally
from gemmdb.exchange.text_formats import each_verdict
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key.device import Device
from gemmdb.key.layout import contiguous
from gemmdb.key.operands import Operand, dense_bias
from gemmdb.key.ops import SCALES
from gemmdb.key.problem import Problem
from gemmdb.rejected import Rejected
from gemmdb.table.reader import Table
from gemmdb.table.verdict import Verdict

TORCH = {
    "fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8", "uint8": "uint8",
    "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2",
}  # fmt: skip
"""The key's dtype names, mapped to torch's."""
TEMPLATES = {
    "inductor_mm": "triton::mm",
    "inductor_persistent_tma": "triton::mm_persistent_tma",
    "inductor_bmm": "triton::bmm",
    "inductor_scaled_tma": "triton::scaled_mm_device_tma_epilogue_scaling",
}
"""Inductor's own kernels, with their names in Inductor's table."""
ATEN_NAMES = {"mm": "aten::mm", "bmm": "aten::bmm", "int_mm": "aten::_int_mm", "scaled_mm": "aten::_scaled_mm"}
"""ATen's kernel for each op in Inductor's table."""
_TMA_BYTES = 128
"""Bytes of a tensor map descriptor, torch's `TMA_DESCRIPTOR_SIZE`."""

Entries = dict[str, list[dict[str, Any]]]


def write(table: Table, out: Path, tally: Tally) -> int:
    """Write the entries for a table's verdicts as JSON. Returns the number of entries."""
    entries = build(table, tally)
    out.write_text(json.dumps(entries, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return len(entries)


def build(table: Table, tally: Tally) -> Entries:
    """Return the entries for a table's verdicts: keys in order, one config each. If several problems share a key, the
    plainest one is exported. What Inductor's table cannot express goes to `tally`, by problem. Raises TableError."""
    found: dict[str, list[Problem]] = defaultdict(list)
    values: dict[tuple[str, Problem], dict[str, Any]] = {}
    for problem, device, verdict in each_verdict(table, tally):
        if verdict.protocol.clock == "model":
            tally.leave("its verdict is modelled, not measured", f"{problem.text} on {device.sku}")
        elif rejected := rejection(problem, device):
            tally.leave(rejected.reason, f"{problem.text} on {device.sku}")
        elif config := _choice(table, problem, device, verdict, tally):
            value = entry(config, problem, device)
            for name in keys(problem, device):
                found[name].append(problem)
                values[name, problem] = value
    entries: Entries = {}
    for name in sorted(found):
        first, *others = sorted(
            found[name], key=lambda one: (one.fusion != "none", one.numerics.deterministic, one.constant, one.text)
        )
        entries[name] = [values[name, first]]
        for other in others:
            tally.leave("another problem with the same Inductor key is exported instead", other.text)
    return entries


def keys(problem: Problem, device: Device) -> list[str]:
    """Return the keys of a GEMM in Inductor's table, for problems without a `rejection`: one, or one for each way to
    store the scales of fp8 operands, which `Problem` does not distinguish."""
    if not problem.scaled:
        return [_key(problem, device)]
    if problem.scales == "tensor":
        return [_key(problem, device, [(ones, ones), (ones, ones)]) for ones in ([], [1], [1, 1])]
    rows = [problem.m, 1], [1, 1]
    return [_key(problem, device, [rows, ([1, problem.n], strides)]) for strides in ([problem.n, 1], [1, 1])]


def _key(problem: Problem, device: Device, scales: Sequence[tuple[list[int], list[int]]] = ()) -> str:
    """`scales`: sizes and strides of the scales of A and B."""
    batch = [problem.batch] if problem.spec.batched else []
    m, n, k = problem.m, problem.n, problem.k
    inputs = [_tensor(problem.a, batch, m, k), _tensor(problem.b, batch, k, n)]
    inputs += [f"(torch.float32, {sizes}, {strides})" for sizes, strides in scales]
    scalars = ""
    if problem.bias is not None and problem.scaled:
        inputs.append(f"(torch.{TORCH[problem.bias.dtype]}, [{n}], [1])")
    elif problem.bias is not None:
        strides = _bias_strides(problem.bias.kind, m, n)
        inputs.insert(0, f"(torch.{TORCH[problem.bias.dtype]}, [{m}, {n}], {strides})")
        scalars = "+alpha=1&beta=1"
    return f"{device.sku}+({', '.join(inputs)}){scalars}+{problem.op}"


def entry(config: Config, problem: Problem, device: Device) -> dict[str, Any]:
    """Return the value for a config: the template's name and its complete keyword arguments, JSON-ready. torch 2.11
    adds no defaults."""
    if config == ATEN:
        return {"template_id": ATEN_NAMES[problem.op]}
    value: Mapping[str, Any] = config.values
    found = {
        "template_id": TEMPLATES[config.kernel],
        **{name.upper(): value[name] for name in ("block_m", "block_n", "block_k", "group_m")},
        "EVEN_K": problem.k % value["block_k"] == 0,
        "USE_FAST_ACCUM": False,
        "ACC_TYPE": "tl.int32" if problem.spec.integer else "tl.float32",
        "num_stages": value["stages"],
        "num_warps": value["warps"],
    }
    if problem.scaled:
        recipe = SCALES.index(problem.scales)
        found |= {"SCALE_RECIPE_A": recipe, "SCALE_RECIPE_B": recipe}
    if config.spec.maps(config):
        found |= {"NUM_SMS": device.units, "TMA_SIZE": _TMA_BYTES, "TMA_EXPERIMENTAL_API": False}
    if config.kernel == "inductor_persistent_tma":
        found |= {
            "A_ROW_MAJOR": problem.a.row_major, "B_ROW_MAJOR": problem.b.row_major, "tma_store": False,
            "transpose_discontiguous_tensor_descriptors_override": True,
        }  # fmt: skip
    return found


def rejection(problem: Problem, device: Device) -> Rejected | None:
    """Return why Inductor's table cannot express a problem."""
    if device.kind != "cuda":
        return Rejected("PyTorch's lookup table is for NVIDIA GPUs only")
    if problem.op not in (*ATEN_NAMES, "addmm"):
        return Rejected(f"PyTorch's lookup table has no entries for {problem.op}")
    if problem.scalars != "unit":
        return Rejected("alpha or beta is not 1, and the key would need its value")
    if problem.fusion == "scale":
        return Rejected("its kernel applies a scale, and Inductor's templates do not")
    if problem.scales == "block":
        return Rejected("Inductor's kernels for block scales are none that gemmdb measures")
    if problem.numerics.fast:
        return Rejected("the key does not say whether fast accumulation is allowed, and the entry would decide it")
    if problem.a.dtype not in TORCH or problem.b.dtype not in TORCH:
        return Rejected("torch has no such dtype")
    batch = problem.batch if problem.spec.batched else None
    a, b, bias = problem.a, problem.b, problem.bias
    dense = all(
        operand.layout in [contiguous(*sizes, operand.dtype, transposed, batch) for transposed in (False, True)]
        for operand, sizes in ((a, (problem.m, problem.k)), (b, (problem.k, problem.n)))
    )
    if bias is not None:
        if problem.scaled and bias.kind != "1d":
            return Rejected("torch takes only a bias of one dimension there")
        dense = dense and bias == dense_bias(bias.kind, problem.m, problem.n, bias.dtype) and bias.dtype in TORCH
    return None if dense else Rejected("its operands are not dense, and the table has only dense ones")


def _choice(table: Table, problem: Problem, device: Device, verdict: Verdict, tally: Tally) -> Config | None:
    """Return the config to export: the pick, else the fastest measured one that Inductor has, if it beats ATen beyond
    the noise, else ATen. Anything but the pick is noted in `tally`."""
    pick, name = verdict.pick, f"{problem.text}: {verdict.pick.name}"
    if _sayable(pick, problem):
        return pick
    if pick != ATEN:
        pooled = table.pooled(problem, device, verdict.protocol.l2, verdict.klass)
        known = (one for one in pooled if one.servable and one.config.kernel in TEMPLATES)
        found = next((one.config for one in known if one.ratio * (1 + one.spread) < 1), ATEN)
        if _sayable(found, problem):
            tally.leave("Inductor lacks the kernel; the fastest one that it has is exported instead", name)
            return found
    tally.leave("ATen is Inductor's best kernel, and its lookup table cannot express that for an addmm", name)
    return None


def _sayable(config: Config, problem: Problem) -> bool:
    return config.kernel in TEMPLATES or (config == ATEN and problem.op in ATEN_NAMES)


def _bias_strides(kind: str, m: int, n: int) -> list[int]:
    """Return the strides of a bias that Inductor has expanded to [m, n]: 0 along broadcast dimensions and dimensions of
    size 1. A full-size bias keeps its strides."""
    if kind == "full" or (kind == "column" and n == 1):
        return [n, 1]
    return [0, int(n > 1)] if kind == "1d" else [int(m > 1), 0]


def _tensor(operand: Operand, batch: list[int], rows: int, columns: int) -> str:
    strides = [columns, 1] if operand.row_major else [1, rows]
    if batch:
        strides.insert(0, rows * columns)
    return f"(torch.{TORCH[operand.dtype]}, {[*batch, rows, columns]}, {strides})"
