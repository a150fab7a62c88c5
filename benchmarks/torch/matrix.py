"""Run the integration's CPU tests on every supported torch that can be installed here; `make matrix`.

    python -m benchmarks.torch matrix [--versions 2.11,2.15] [--out FILE.json] [--keep] [-- PYTEST ARGUMENTS]

Each torch gets its own virtual environment under .matrix (several GB if only CUDA builds exist), which is removed after
its tests unless you pass --keep. A version that cannot be installed is named and left out. The result is merged into
FILE: how many tests ran, failed and were skipped on each version. Exits with 1 if a test failed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
import venv
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT
from gemmdb.inductor.lower.adapter import SUPPORTED_TORCH

FOLDER = ROOT / ".matrix"
RESULT = ROOT / "benchmarks" / "results" / "torch-matrix.json"


def installed(version: str) -> tuple[Path, str]:
    """The python of an environment with that torch and gemmdb, and why it could not be made (empty if it was)."""
    home = FOLDER / version
    python = home / "bin" / "python"
    if not (home / ".complete").exists():
        venv.create(home, clear=True, with_pip=True)
        # torch first: whatever depends on it must find this build and not fetch another.
        for wanted in ([f"torch=={version}.*"], ["-e", f"{ROOT}[dev]"]):
            done = subprocess.run([python, "-m", "pip", "install", "-q", *wanted], capture_output=True, text=True)
            if done.returncode:
                return python, done.stderr.strip().splitlines()[-1]
        (home / ".complete").touch()
    return python, ""


def tested(version: str, arguments: list[str]) -> dict[str, Any]:
    """The result of the tests on one torch."""
    python, failure = installed(version)
    if failure:
        return {"not_installed": failure}
    report = FOLDER / f"{version}.xml"
    asked = arguments or ["tests/inductor"]
    start = time.monotonic()
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *asked]
    done = subprocess.run(command, cwd=ROOT, check=False)
    full = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    if not report.exists():
        return {"torch": full.stdout.strip(), "crashed": done.returncode}
    suite = ElementTree.parse(report).getroot()
    suite = suite if suite.tag == "testsuite" else suite[0]
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    failed = [f"{case.get('classname')}::{case.get('name')}" for case in suite
              if case.find("failure") is not None or case.find("error") is not None]  # fmt: skip
    return {"torch": full.stdout.strip(), "ran": asked, **counts, "failed": failed,
            "seconds": round(time.monotonic() - start), "date": time.strftime("%Y-%m-%d", time.gmtime())}  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tool."""
    parser.add_argument("--versions", default=",".join(SUPPORTED_TORCH), help="comma-separated; default: all")
    parser.add_argument("--out", type=Path, default=RESULT, metavar="FILE", help="the result")
    parser.add_argument("--keep", action="store_true", help="keep the virtual environments")
    parser.add_argument("pytest", nargs="*", metavar="ARGUMENT", help="of pytest, after --; default: tests/inductor")


def main(options: argparse.Namespace) -> None:
    """Test each version, and write after each."""
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    asked = options.versions.split(",")
    for version in asked:
        found[version] = tested(version, options.pytest)
        options.out.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        print(version, found[version], flush=True)
        if not options.keep:
            shutil.rmtree(FOLDER / version, ignore_errors=True)
    sys.exit(any(found[version].get("failed") or "crashed" in found[version] for version in asked))
