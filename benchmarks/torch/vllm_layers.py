"""Layers of experts as transformers spells them, compiled in default mode and with gemmdb, beside vLLM's fused experts.

    python -m benchmarks.torch vllm-layers --out OUT.jsonl [--layers mixtral,qwen3-moe] [--tokens 1,16,256,4096]
        [--files FOLDER] [--seconds 300]

The layers are those of `benchmarks/programs/expert_layers.py`. All ways have the same weights, and the same four pairs
of activations and a routing in turn. They are timed in turn, in CUDA graphs, with cold caches. `vllm` has the config
that vLLM has for the layer: of its own file for this GPU, else its default, which a line has beside it. `vllm-file` has
that of FOLDER, where `gemmdb vllm experts` wrote a file. A line has the quartiles of each way in microseconds, its
error against fp32, and what gemmdb answered. OUT gets a line when it is done; layers that have one are left out. vLLM
must be installed.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import geometric_mean
from time import monotonic
from typing import TYPE_CHECKING, Any

from benchmarks.common import json_lines, software, without_root
from benchmarks.programs.expert_layers import SIZES, TOKENS

if TYPE_CHECKING:
    import torch

    from gemmdb.generators.vllm.layers import Experts
    from gemmdb.generators.vllm_files import Tile

SAMPLES, UNROLL = 30, 8
Call = Callable[[int], Any]
"""Runs the layer on one of `operands.COPIES` inputs, by its index."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the result; lines are appended")
    parser.add_argument("--layers", metavar="NAMES", default=",".join(SIZES), help="default: %(default)s")
    parser.add_argument("--tokens", metavar="M,...", default=",".join(map(str, TOKENS)), help="default: %(default)s")
    parser.add_argument("--files", type=Path, metavar="FOLDER", help="the folder of `gemmdb vllm experts`")
    parser.add_argument("--seconds", type=float, default=300.0, help="begin no layer after that time [%(default)s]")


def main(options: argparse.Namespace) -> None:
    """Measure the layers that have no line, and print the means of all."""
    if unknown := set(options.layers.split(",")) - set(SIZES):
        raise SystemExit(f"--layers {','.join(sorted(unknown))}: no such layer; there are {', '.join(SIZES)}")
    until, known = monotonic() + options.seconds, json_lines(options.out)
    done = {(line["name"], line["tokens"]) for line in known}
    for name in options.layers.split(","):
        wanted = [m for m in map(int, options.tokens.split(",")) if (name, m) not in done]
        for line in _lines(name, wanted, options.files, until):
            known.append(line)
            with options.out.open("a") as file:
                file.write(without_root(line) + "\n")
            print(told(line), flush=True)
    print(summary(known))


def told(line: Mapping[str, Any]) -> str:
    """What is printed of a line."""
    times = ", ".join(f"{way} {us[1]:.1f}" for way, us in line["us"].items())
    return f"{line['name']}, {line['tokens']} tokens: {times} us; gemmdb {gain(line, 'vllm'):.3f}x of vllm"


def gain(line: Mapping[str, Any], way: str) -> float:
    """How many times as fast gemmdb is, by the medians."""
    return float(line["us"][way][1] / line["us"]["gemmdb"][1])


def summary(lines: list[dict[str, Any]]) -> str:
    """The geometric means over the layers that have a way."""
    ways = dict.fromkeys(way for line in lines for way in line["us"] if way != "gemmdb")
    means = {way: [gain(line, way) for line in lines if way in line["us"]] for way in ways}
    told = ", ".join(f"{geometric_mean(gains):.3f}x of {way} ({len(gains)})" for way, gains in means.items())
    return f"gemmdb, geometric mean (layers): {told or 'nothing measured'}"


def _lines(name: str, tokens: list[int], files: Path | None, until: float) -> Iterator[dict[str, Any]]:
    import torch

    from gemmdb.generators import vllm_files
    from gemmdb.generators.vllm import kernels, operands
    from gemmdb.generators.vllm.layers import Experts

    if not tokens:
        return
    sizes, device = SIZES[name], torch.device("cuda")
    layer = Experts(sizes.experts, sizes.top_k, sizes.hidden, sizes.inner)
    versions = kernels.versions(layer, device)
    weights = [operands.weight(one, layer.fp8, device) for one in layer.weights]
    path = files / layer.name(versions["device"]).text if files is not None else None
    tiles = vllm_files.read(path).tiles if path is not None and path.exists() else {}
    for m in tokens:
        if monotonic() > until:
            return
        kernel = kernels.kernel(layer, weights, m, device)
        calls: dict[str, Call] = {"vllm": kernel.call(kernel.current)}
        configs = {"vllm": kernel.current.values, "vLLM's default": kernels.default(layer, m).values}
        if tiles:
            own = _nearest(tiles, m)
            calls["vllm-file"], configs["vllm-file"] = kernel.call(own), own.values
        with tempfile.TemporaryDirectory() as folder:
            compiled, answers = _compiled(layer, [one.values for one in weights], m, Path(folder))
        calls = {**compiled, **calls}
        errors = {way: operands.error(call(0)[kernel.sample], kernel.exact) for way, call in calls.items()}
        us = _timed(calls)
        yield {
            "name": name, "tokens": m, "layer": layer.described, "us": us, "errors": errors, "configs": configs,
            "answers": answers, **software(), **versions,
        }  # fmt: skip


def _nearest(tiles: Mapping[int, Tile], m: int) -> Tile:
    """The config that vLLM takes from a file."""
    return tiles[min(tiles, key=lambda known: abs(known - m))]


def _compiled(
    layer: Experts, weights: list[torch.Tensor], m: int, folder: Path
) -> tuple[dict[str, Call], list[dict[str, Any]]]:
    """The layer in default mode and with gemmdb, each compiled as in a new process, and gemmdb's answers."""
    import os

    import torch

    import gemmdb.inductor
    from benchmarks.dense.ways import ways
    from benchmarks.programs.expert_layer import experts
    from gemmdb.generators.vllm import operands
    from gemmdb.inductor.benchmark import tune
    from gemmdb.inductor.benchmark.limits import BUDGET

    device = torch.device("cuda")
    inputs = operands.activations(m, layer.hidden, device)
    # As a model has them: the shares in the dtype of the activations.
    routed = [(shares.bfloat16(), chosen.long()) for shares, chosen in operands.routings(layer, m, device)]
    os.environ["GEMMDB_USER_TABLE"] = str(folder / "user.db")
    calls: dict[str, Call] = {}
    torch._dynamo.reset()
    for way, how in ways(None).items():
        BUDGET.clear()
        tune.forget_lateness()
        gemmdb.inductor.reset_stats()
        run = torch.compile(experts, dynamic=False, **how)

        def call(index: int, run: Any = run) -> torch.Tensor:
            with torch.no_grad():
                found: torch.Tensor = run(inputs[index], *routed[index], *weights)
            return found

        call(0)
        calls[way] = call
    stats = gemmdb.inductor.stats()
    kept = ("problem", "rung", "config", "speedup_vs_aten", "note")
    answers = [{name: product.get(name) for name in kept} for product in stats["products"]]
    return calls, [*answers, *({"error": one} for one in stats["errors"])]


def _timed(calls: Mapping[str, Call]) -> dict[str, list[float]]:
    from benchmarks.interleaved import timed
    from gemmdb.generators.measure.cuda.backend import VERSION
    from gemmdb.generators.vllm import operands
    from gemmdb.table.measurement import Protocol

    return timed(calls, operands.COPIES, Protocol("graph", "cold", UNROLL, SAMPLES, version=VERSION))
