"""The simulated build runs, with all its processes, on a few problems."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_few_problems_are_built_on_gpus_that_sleep(tmp_path):
    shapes = tmp_path / "few.json"
    shapes.write_text(json.dumps([{"op": ["mm", "mixed_mm"], "m": [1, 16], "n": 4096, "k": 4096, "dtype": "bf16"}]))
    flags = ["--shapes", str(shapes), "--gpus", "2", "--cores", "4", "--warm", "--gpu-seconds", "0.02,0.01,0.03"]
    command = [sys.executable, "-m", "benchmarks.h200", "simulate", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(done.stdout)
    assert (found["gpus"], found["measured"]) == (2, 4)
    assert found["rows"] > 4 * 20
    assert 0 < found["busy_share"] < 1
