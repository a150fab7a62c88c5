"""A build for a recorded workload: record a program's products, measure them, compile strictly with the table.

    python examples/workload.py

The four steps of a user: `gemmdb record`, `gemmdb build`, `gemmdb coverage`, and the program again, with gemmdb. The
program has one small product and the build takes the least effort, so all of it takes less than a minute. Expect a
coverage of 100%, and one product on rung `exact`. With `on_miss="error"` the compile would fail for a product that the
table does not hold. The picked config depends on the machine.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import sys
import torch
import torch._inductor.config

torch._inductor.config.freezing = True  # on a CPU the kernels need constant weights
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(128, 256, device=device, dtype=torch.bfloat16).eval()
how = {"backend": "gemmdb", "options": {"gemmdb.on_miss": "error"}} if sys.argv[1:] else {}
with torch.no_grad():
    torch.compile(model, **how)(torch.randn(16, 128, device=device, dtype=torch.bfloat16))
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
    run("-m", "gemmdb", "build", "--arch", "native", "--shapes", workload, "--effort", "quick", "--out", table)
    os.environ["GEMMDB_TABLES"] = table
    run("-m", "gemmdb", "coverage", workload)
    run(program, "strict")
