"""Whether the bits of a row depend on the number of rows: ATen, default mode and gemmdb with batch invariance.

    python -m benchmarks.torch invariance --out invariance.json [--rows 1,3,8,16,17,64,200,512] [--hint 64]

The program has the four projections of a Llama-3-8B-shaped layer, one with a bias and one with a GELU. It runs for each
number of rows, and each time its first row is the same. For each GEMM and each way to run it, a line says which numbers
of rows agree in all bits: `1 3 8 | 16 17` means two results. `symbolic` is one compile for all numbers of rows but the
first, and is compared with `static`.

The other lines say the same of single kernels, in place of numbers of rows, for a weight in bf16 and in int8. Kernels
of one summation order must agree. Kernels that cannot be generated are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import software, without_root

ROWS = "1,3,8,16,17,64,200,512"
TILES: Mapping[str, Mapping[str, int | str]] = {
    "group": {"swap": 1}, "group, k=32": {"swap": 1, "block_k": 32}, "group, k=256": {"swap": 1, "block_k": 256},
    "group, 64 rows": {"swap": 1, "block_m": 64}, "group, unswapped": {"block_m": 64},
    "group, 128 x 128": {"block_m": 128, "block_n": 128, "warps": 8}, "group, 128 x 256": {
        "block_m": 128, "block_n": 256, "warps": 8},
    "warp": {"warps": 2}, "warp, k=32": {"warps": 2, "block_k": 32}, "warp, k=256": {"warps": 2, "block_k": 256},
    "warp, swapped": {"warps": 2, "swap": 1}, "warp, 64 x 32": {"warps": 2, "block_m": 64, "block_n": 32},
    "two slices": {"swap": 1, "split_k": 2, "reduce": "fixup"},
    "four slices": {"swap": 1, "split_k": 4, "reduce": "fixup"},
    "four slices, k=128": {"swap": 1, "split_k": 4, "reduce": "fixup", "block_k": 128},
    "four slices, unswapped": {"block_m": 64, "split_k": 4, "reduce": "fixup"},
    "four slices, one program": {"swap": 1, "slices": 4},
    "four slices, one program, 128 x 128": {"block_m": 128, "block_n": 128, "warps": 8, "slices": 4},
}  # fmt: skip
"""Changes of a tile of 16 x 64 x 64 for 16 rows, by the names in the output. `group`: multiplied by a warp group."""
BASE: Mapping[str, int | str] = {
    "block_m": 16, "block_n": 64, "block_k": 64, "group_m": 8, "split_k": 1, "reduce": "none", "swap": 0,
    "load": "pointer", "dequant": "cast", "warps": 4, "stages": 3,
}  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument(
        "--out", type=Path, default=Path("invariance.json"), metavar="FILE", help="default: invariance.json"
    )
    parser.add_argument("--rows", default=ROWS, metavar="ROWS,...", help=f"default: {ROWS}")
    parser.add_argument(
        "--hint", type=int, default=64, metavar="ROWS", help="rows of the symbolic compile's first call"
    )


def main(options: argparse.Namespace) -> None:
    """Compile the program in each way for all numbers of rows, then single kernels."""
    rows = [int(one) for one in options.rows.split(",")]
    import torch

    from benchmarks.torch import projections

    with torch.no_grad():
        program = projections.Projections("cuda")
        given = projections.inputs(max(rows, default=1), "cuda")
        ways: dict[str, dict[int, Any]] = {
            "ATen": projections.results(program, given, rows),
            "default mode": projections.results(projections.compiled(program), given, rows),
            "static": projections.results(projections.compiled(program, True), given, rows),
        }
        facts = projections.covered()
        symbolic = projections.symbolic(program, given, (rows[1:], options.hint))
        ways["symbolic"] = {rows[0]: ways["static"][rows[0]], **symbolic}
        weights = {"bf16": program.weights[0], "int8": (program.weights[0] * 1000).to(torch.int8)}
        kernels = {name: projections.kernels(given[0], weight, configs(name)) for name, weight in weights.items()}
    found: dict[str, Any] = {
        **software(), "rows": rows, "covered": facts,
        "agree": {
            way: {name: grouped({m: one[place] for m, one in by_rows.items()}, torch.equal)
                  for place, name in enumerate(projections.NAMES)}
            for way, by_rows in ways.items()
        },
        "kernels": {name: grouped(results, torch.equal) for name, results in kernels.items()},
    }  # fmt: skip
    options.out.write_text(without_root(found) + "\n")
    print("\n".join(lines(found)), flush=True)


def configs(weight: str) -> dict[str, Any]:
    """The kernels that are compared for a dtype of the weight, by name. An int8 weight is dequantised in two ways."""
    from gemmdb import Config

    tiles = TILES if weight == "bf16" else {
        f"{name}{said}": {**changes, "dequant": mode}
        for said, mode in (("", "cast"), (", bits", "bits")) for name, changes in TILES.items() if "slices" not in name
    }  # fmt: skip
    return {name: Config.of("triton", "tile", **{**BASE, **changes}) for name, changes in tiles.items()}


def grouped(results: Mapping[Any, Any], equal: Callable[[Any, Any], bool]) -> list[list[Any]]:
    """The names of the results that are equal, in a list for each result."""
    found: list[tuple[Any, list[Any]]] = []
    for name, result in results.items():
        group = next((names for other, names in found if equal(other, result)), None)
        if group is None:
            found.append((result, [name]))
        else:
            group.append(name)
    return [names for _, names in found]


def lines(found: Mapping[str, Any]) -> Iterable[str]:
    """The result as text."""
    for way, by_name in found["agree"].items():
        for name, groups in by_name.items():
            yield f"{way}, {name}: {' | '.join(' '.join(map(str, group)) for group in groups)}"
    for weight, groups in found["kernels"].items():
        yield from (f"kernels, {weight} weight: {'; '.join(group)}" for group in groups)
    yield f"covered: {found['covered']}"
