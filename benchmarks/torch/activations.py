"""Time linear layers with ReLU and GELU: what cuBLASLt saves that computes the activation within its call.

    python -m benchmarks.torch activations --out activations.json [--layers 8192x2048,3072x768] [--rows 16,256]
        [--seconds 120]

Each layer, `activation(addmm(bias, x, weight.t()))` in bf16, is compiled as where no table answers: the compile times
the algorithms, and confirms the best against what Inductor emits in default mode, a GEMM of ATen and a kernel for the
bias and the activation: in CUDA graphs, the weight cold. A line has the two times that the compile confirmed, their
ratio, and how far the results are apart, relative to the largest. Without times, default mode's two kernels are served.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import software
from gemmdb.errors import InputError

LAYERS = "8192x2048,3072x768,6400x1600,10240x2560,4304x1152,5120x2048"
"""N x K of the first feed-forward layer of OPT-1.3B, OPT-125M and GPT-2, GPT-2 XL, Phi-2, SigLIP, T5."""
ACTIVATIONS = ("relu", "gelu_tanh")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument(
        "--out", type=Path, default=Path("activations.json"), metavar="FILE", help="default: activations.json"
    )
    parser.add_argument("--layers", default=LAYERS, metavar="NxK,...", help="default: six layers of models")
    parser.add_argument("--rows", default="16,64,256,1024,4096", metavar="M,...", help="default: 16 to 4096")
    parser.add_argument("--seconds", type=float, default=240, help="begin no layer after that time; default: 240")


def main(options: argparse.Namespace) -> None:
    """Compile all layers, and write after each."""
    layers = [(numbers[0], numbers[1]) for numbers in parsed("--layers", options.layers, 2)]
    rows = [numbers[0] for numbers in parsed("--rows", options.rows, 1)]
    found: list[dict[str, Any]] = []
    until = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        without_tables(Path(folder))
        for m, (n, k), activation in product(rows, layers, ACTIVATIONS):
            if time.monotonic() > until:
                break
            found.append({"sizes": [m, n, k], "activation": activation, **measured(m, n, k, activation)})
            options.out.write_text(json.dumps({**software(), "layers": found}, indent=1))
            print(line(found[-1]), flush=True)
    print(summary(found), flush=True)


def parsed(option: str, text: str, count: int) -> list[tuple[int, ...]]:
    """The numbers of a text such as `8192x2048,3072x768`, `count` in each part. Raises InputError."""
    found = []
    for one in text.split(","):
        numbers = one.strip().split("x")
        if len(numbers) != count or not all(number.isdigit() and int(number) for number in numbers):
            raise InputError(f"{option}: {count} positive numbers with x between them, not {one!r}")
        found.append(tuple(map(int, numbers)))
    return found


def without_tables(folder: Path) -> None:
    """From now on, this process reads no table that ships, and the user's table is in `folder`."""
    import gemmdb.table.catalog as catalog

    os.environ["XDG_DATA_HOME"] = str(folder)
    catalog.shipped_tables = lambda: folder / "none"  # type: ignore[attr-defined]  # of another module, for this process


def measured(m: int, n: int, k: int, activation: str) -> dict[str, Any]:
    """The result of one compile: the config that it serves, and what it confirmed."""
    import torch

    import gemmdb.inductor
    from gemmdb import Policy
    from gemmdb.inductor.benchmark import algorithms
    from gemmdb.inductor.benchmark.limits import BUDGET

    x = torch.randn(m, k, device="cuda").bfloat16()
    w = (torch.randn(n, k, device="cuda") / k**0.5).bfloat16()
    b = torch.randn(n, device="cuda").bfloat16()
    layer = layer_with(activation)
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    # As in a new process: what an earlier compile found or spent does not count.
    algorithms._KNOWN.clear()
    BUDGET.clear()
    nothing = Policy(on_miss="aten", confirm=True, confirm_s=60.0, near=False, sku=False, model=False, horizontal=False)
    gemmdb.inductor.enable(policy=nothing)
    with torch.no_grad():
        ours, torchs = torch.compile(layer)(x, w, b), layer(x, w, b)
    stats = gemmdb.inductor.stats()
    (one,) = stats["products"]
    confirmed = one["evidence"].get("confirmed")
    return {
        "config": one["config"], "us": confirmed and confirmed["us"], "default_us": confirmed and confirmed["aten_us"],
        "apart": float((ours - torchs).abs().max() / torchs.abs().max()), "errors": stats["errors"],
    }  # fmt: skip


def layer_with(activation: str) -> Callable[..., Any]:
    """The layer."""
    import torch

    def relu(x: Any, w: Any, b: Any) -> Any:
        return torch.relu(torch.addmm(b, x, w.t()))

    def gelu_tanh(x: Any, w: Any, b: Any) -> Any:
        return torch.nn.functional.gelu(torch.addmm(b, x, w.t()), approximate="tanh")

    return {"relu": relu, "gelu_tanh": gelu_tanh}[activation]


def line(row: Mapping[str, Any]) -> str:
    """A row as text."""
    m, n, k = row["sizes"]
    head = f"{m} x {n} x {k} {row['activation']}: {row['config'].partition(' ')[0]}"
    times = f", {row['default_us']:.1f} us in default mode, {row['us']:.1f} us" if row["us"] else ""
    ratio = f", {row['default_us'] / row['us']:.3f}x" if row["us"] else ""
    return f"{head}{times}{ratio}, results {row['apart']:.1e} apart" + (", failed" if row["errors"] else "")


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many layers call cuBLASLt with their activation, and what that saves."""
    gains = [row["default_us"] / row["us"] for row in rows if "matmul_activation" in row["config"] and row["us"]]
    if not gains:
        return f"none of {len(rows)} layers calls cuBLASLt with its activation"
    mean = math.exp(sum(map(math.log, gains)) / len(gains))
    return (
        f"{len(gains)} of {len(rows)} layers call cuBLASLt with their activation: {mean:.3f}x of default mode in the "
        f"geometric mean, median {median(gains):.3f}x, {min(gains):.3f}x to {max(gains):.3f}x"
    )
