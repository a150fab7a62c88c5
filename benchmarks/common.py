"""What the tools of all packages share: where the repository is, files of JSON lines, and the GPUs of this host."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gemmdb.devices import detect
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import installed

ROOT = Path(__file__).parents[1]
SHIPPED = ROOT / "tables" / "sm90-nvidia-h200.db"


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file, compressed (.gz, .xz) or not; none if there is no file. A line that an interrupt cut
    off is left out."""
    if not path.exists():
        return []
    found, raw = [], path.read_bytes()
    decompress = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(path.suffix, bytes)
    for line in decompress(raw).decode().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def without_root(found: Any) -> str:
    """One line of JSON. Paths inside the repository become relative to it."""
    return json.dumps(found).replace(f"{ROOT}/", "")


def write_shapes(path: Path, problems: Iterable[Problem]) -> Path:
    """Write a file of shapes that lists the problems by their canonical texts; returns its path."""
    path.write_text("".join(json.dumps({"problem": problem.text}) + "\n" for problem in problems))
    return path


def read_shapes(path: Path) -> list[Problem]:
    """The problems of a file that `write_shapes` wrote."""
    return [Problem.parse(line["problem"]) for line in json_lines(path)]


def now() -> str:
    """The time in UTC, as ISO 8601."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def software() -> dict[str, Any]:
    """The date, the GPU and the toolchain of this process, as a result records them."""
    device, toolchain = detect.cuda(), installed("cuda")
    return {"date": now(), "device": device and device.text, "toolchain": toolchain and toolchain.text}


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them. Raises FileNotFoundError without
    nvidia-smi."""
    outer = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return outer.split(",") if outer else [str(index) for index in range(len(_nvidia_smi("-L")))]


def gpu_states() -> list[str]:
    """Name, driver, clocks and power limit of each GPU, as nvidia-smi prints them."""
    return _nvidia_smi("--query-gpu=name,driver_version,clocks.sm,clocks.mem,power.limit", "--format=csv,noheader")


def _nvidia_smi(*arguments: str) -> list[str]:
    done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()
