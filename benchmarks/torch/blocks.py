"""Times blocks of transformers with and without horizontal fusion, each as one CUDA graph, replayed in turn.

The blocks have the sizes of published models, and random weights. For each, a line has the microseconds of a call in
default mode, with gemmdb without horizontal fusion, and with it; the seconds of the first compile (the first one of
the process also starts Inductor); and the largest error against the same block in fp32, relative to its largest value.

    python -m benchmarks.torch blocks --out blocks.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument(
        "--out", type=Path, default=Path("blocks.json"), help="the file to write (default: blocks.json)"
    )


def main(options: argparse.Namespace) -> int:
    """Time all shapes, and write what was measured."""
    import torch

    from benchmarks.torch import block_times

    found: list[dict[str, Any]] = []
    with torch.no_grad():
        for name, shape in block_times.SHAPES.items():
            found.append({"name": name, "shape": asdict(shape), "ways": block_times.measured(shape)})
            print(name, {way: round(facts["us"], 1) for way, facts in found[-1]["ways"].items()}, flush=True)
    document = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "blocks": found}
    options.out.write_text(json.dumps(document, indent=1))
    return 0
