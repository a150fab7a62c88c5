"""AOTInductor: compile a package with gemmdb enabled, and run it in a process that cannot import gemmdb.

    python examples/aot.py

The package contains the kernels that gemmdb chose, so loading it does not require gemmdb. Expect one GEMM and matching
outputs.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import gemmdb.inductor

LOAD = """
import sys
sys.modules["gemmdb"] = None  # an import of gemmdb fails
import torch
package, file = sys.argv[1:]
x, expected = torch.load(file)
y = torch._inductor.aoti_load_package(package)(x)
print(f"largest difference from eager: {(y - expected).abs().max().item():.1e}")
"""

gpu = torch.cuda.is_available()
device, dtype = ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float32)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU()).to(device, dtype).eval()
x = torch.randn(16, 256, device=device, dtype=dtype)

gemmdb.inductor.enable()
with tempfile.TemporaryDirectory() as folder, torch.no_grad():
    package, file = Path(folder) / "model.pt2", Path(folder) / "tensors.pt"
    torch._inductor.aoti_compile_and_package(torch.export.export(model, (x,)), package_path=str(package))
    for product in gemmdb.inductor.stats()["products"]:
        print(f"{product['rung']}  {product['config']}  {product['problem']}")
    torch.save((x, model(x)), file)
    subprocess.run([sys.executable, "-c", LOAD, str(package), str(file)], check=True)
