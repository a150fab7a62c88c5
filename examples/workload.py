"""A build for a recorded workload: record a program's GEMMs, benchmark them, and compile strictly with the table.

    python examples/workload.py

Four steps: `gemmdb record`, `gemmdb build`, `gemmdb coverage`, and the program again, with gemmdb. The program has one
small GEMM with an int8 weight and no scale. `--deny '^cpp'` excludes CPU kernels that need a C++ compiler: on a CPU,
the build compares only ATen's kernels and takes about a minute. `--wait 0s` measures although other programs use the
machine. Omit both in your own builds. Expect 100% coverage, unless other programs disturbed the times, and one GEMM on
rung `exact`. With `on_miss="error"`, the compile fails on a GEMM missing from the table. The picked config depends on
the machine.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import sys
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(16, 128, device=device, dtype=torch.bfloat16)
weight = torch.randint(-127, 128, (256, 128), device=device, dtype=torch.int8)
how = {"backend": "gemmdb", "options": {"gemmdb.on_miss": "error"}} if sys.argv[1:] else {}


def linear(x, weight):
    return torch.nn.functional.linear(x, weight.to(x.dtype))


with torch.no_grad():
    torch.compile(linear, **how)(x, weight)
if how:
    import gemmdb.inductor

    for product in gemmdb.inductor.stats()["products"]:
        print(product["rung"], product["config"], product["problem"], sep="  ")
"""


def run(*command: str) -> None:
    """Print a Python command and run it."""
    print("$ python", *command, flush=True)
    subprocess.run([sys.executable, *command], check=True)


with tempfile.TemporaryDirectory() as folder:
    program, workload, table = (str(Path(folder) / name) for name in ("program.py", "workload.jsonl", "table.db"))
    Path(program).write_text(PROGRAM)
    run("-m", "gemmdb", "record", "--out", workload, "--", sys.executable, program)
    build = ("--arch", "native", "--shapes", workload, "--out", table)
    quickly = ("--effort", "quick", "--deny", "^cpp", "--wait", "0s")
    run("-m", "gemmdb", "build", *build, *quickly)
    os.environ["GEMMDB_TABLES"] = table
    run("-m", "gemmdb", "coverage", workload)
    run(program, "strict")
