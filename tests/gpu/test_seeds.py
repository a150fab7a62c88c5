"""Rows S1 to S7, S18 to S20, S23 and S24 of the seeds' behaviour, each shown by a test of its name on a GPU."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Before torch is imported: parts of Inductor read it once.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp(prefix="inductor-"))

torch = pytest.importorskip("torch")

import gemmdb.inductor  # noqa: E402
from gemmdb import Config, Problem, hardware  # noqa: E402
from gemmdb.legality import illegal  # noqa: E402

F = torch.nn.functional
BF16, FP16, INT8 = torch.bfloat16, torch.float16, torch.int8


def tile(**changes: str | int) -> Config:
    base: dict[str, str | int] = {
        "block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "split_k": 1, "reduce": "none", "swap": 0,
        "load": "pointer", "dequant": "cast", "warps": 4, "stages": 3,
    }  # fmt: skip
    return Config.of("triton", "tile", **{**base, **changes})


SMALL = tile(block_m=16)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    import torch._inductor.config as config

    torch._dynamo.reset()
    torch.manual_seed(0)
    gemmdb.inductor.disable()
    gemmdb.inductor.reset_stats()
    with config.patch(fx_graph_cache=False, compile_threads=1, shape_padding=False):
        yield


def rand(*sizes: int, dtype: Any = BF16) -> Any:
    return torch.randn(*sizes, device="cuda").to(dtype)


def ints(*sizes: int) -> Any:
    return torch.randint(-127, 128, sizes, device="cuda", dtype=INT8)


def compiled(model: Callable[..., Any], *inputs: Any, config: Config, **how: Any) -> tuple[Any, str]:
    from torch._inductor.utils import run_and_get_code

    with gemmdb.inductor.force(config):
        result, codes = run_and_get_code(torch.compile(model, **how), *inputs)
    stats = gemmdb.inductor.stats()
    assert stats["benchmarked"] == 0
    assert stats["errors"] == []
    return result, "\n".join(codes)


def served() -> list[str]:
    return [entry["config"] for entry in gemmdb.inductor.stats()["products"]]


def close(found: Any, wanted: Any, tolerance: float = 0.02) -> None:
    assert found.shape == wanted.shape
    assert (found.double() - wanted).abs().max() <= tolerance * wanted.abs().max()


def test_s1_mm_falls_back_to_aten_when_a_kernel_cannot_be_had() -> None:
    a, b = rand(256, 512), rand(512, 256)
    wanted = a.double() @ b.double()
    found, _ = compiled(torch.mm, a, b, config=tile())
    close(found, wanted)
    assert served() == [tile().text]
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    found, code = compiled(torch.mm, a, b, config=tile(block_m=256, block_n=256, block_k=256, stages=4))
    close(found, wanted)
    assert "extern_kernels.mm" in code


@pytest.mark.parametrize("m", [17, 100, 1024])
def test_s2_int_mm_is_exact(m: int) -> None:
    a, b = ints(m, 256), ints(512, 256)
    found, _ = compiled(lambda a, b: torch._int_mm(a, b.t()), a, b, config=tile(block_k=64))
    assert served() == [tile(block_k=64).text]
    assert torch.equal(found.cpu(), (a.cpu().int() @ b.cpu().int().t()))


def test_s3_addmm_bias_kinds() -> None:
    a, b = rand(96, 512), rand(512, 256)
    for bias in (rand(256), rand(96, 256), rand(96, 1)):
        torch._dynamo.reset()
        gemmdb.inductor.reset_stats()
        found, _ = compiled(torch.addmm, bias, a, b, config=tile())
        close(found, bias.double() + a.double() @ b.double())
        assert served() == [tile().text]


def test_s4_mixed_mm_and_its_heuristics_configs() -> None:
    """fp16 by int8 and uint8 with the tiles that the A100 rules name, and a single row."""
    for m, config in (
        (16, tile(block_m=16, block_k=128, stages=5)),
        (32, tile(block_m=32, block_n=32, block_k=128, stages=5)),
        (64, tile(block_m=64, block_n=32, block_k=128, stages=5)),
        (1, SMALL),
    ):
        x, w = rand(m, 4096, dtype=FP16), ints(4096, 4096)
        for weight in (w, (w.int() + 128).to(torch.uint8)):
            torch._dynamo.reset()
            gemmdb.inductor.reset_stats()
            found, _ = compiled(lambda x, w: F.linear(x, w.to(x.dtype)) * 2**-8, x, weight, config=config)
            close(found, (x.double() @ weight.double().t()) * 2**-8)
            assert served() == [config.text]


def test_s5_the_int32_result_is_never_materialised() -> None:
    a, b, s = ints(2048, 1024), ints(2048, 1024), rand(2048)

    def model(a: Any, b: Any, s: Any) -> Any:
        return (torch._int_mm(a, b.t()) * s).to(BF16)

    found, code = compiled(model, a, b, s, config=tile())
    assert served() == [tile().text]
    assert "torch.int32" not in code.partition("def call")[2]
    close(found, (a.double() @ b.double().t()) * s.double())
    with gemmdb.inductor.force(tile()):
        run = torch.compile(model)
        run(a, b, s)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(a, b, s)
        taken = torch.cuda.max_memory_allocated() - before
    assert taken < 2 * 2048 * 2048 * 2


@pytest.mark.parametrize("sizes", [(0, 64, 64), (16, 0, 64), (16, 64, 0), (1, 64, 64), (16, 1, 64), (16, 64, 1)])
def test_s6_sizes_of_zero_and_one(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    a, b = rand(m, k), rand(k, n)
    found, _ = compiled(torch.mm, a, b, config=SMALL)
    assert found.shape == (m, n)
    if m and n:
        # Half a unit of the largest element's last place, bf16 having 8 bits.
        close(found, a.double() @ b.double(), 2**-8)


def test_s6_dynamic_sizes_are_right_at_every_size() -> None:
    with gemmdb.inductor.force(SMALL):
        run = torch.compile(torch.mm, dynamic=True)
        for m, n, k in ((16, 64, 128), (33, 250, 77), (257, 513, 1025), (1, 64, 128)):
            a, b = rand(m, k), rand(k, n)
            close(run(a, b), a.double() @ b.double(), 0.05)
    assert gemmdb.inductor.stats()["errors"] == []


def test_s7_numerics_and_offsets_are_kept() -> None:
    a, b = torch.randn(64, 513, device="cuda")[:, 1:], torch.randn(512, 64, device="cuda")
    wanted = a.double() @ b.double()
    errors = {}
    for precision in ("highest", "high"):
        torch._dynamo.reset()
        gemmdb.inductor.reset_stats()
        torch.set_float32_matmul_precision(precision)
        try:
            found, _ = compiled(torch.mm, a, b, config=tile(block_k=32))
        finally:
            torch.set_float32_matmul_precision("highest")
        errors[precision] = float((found.double() - wanted).abs().max() / wanted.abs().max())
        assert served() == [tile(block_k=32).text]
    assert errors["highest"] < 1e-5 < errors["high"] < 5e-3


EPILOGUES: dict[str, Callable[[Any], Any]] = {
    "times": lambda y: y * 3.0,
    "affine": lambda y: y * 3.3 - 1.234,
    "relu": torch.relu,
    "relu6": lambda y: torch.clamp(y, 0.0, 6.0),
    "shape": lambda y: y / y.shape[1],
    "dtype": lambda y: y.to(torch.float32),
}


@pytest.mark.parametrize("config", [tile(), tile(split_k=2, reduce="kernel")], ids=["whole", "split"])
@pytest.mark.parametrize("name", EPILOGUES)
def test_s18_epilogues(name: str, config: Config) -> None:
    a, b, after = rand(128, 512), rand(512, 256), EPILOGUES[name]
    found, code = compiled(lambda a, b: after(a @ b), a, b, config=config)
    close(found, after(a.double() @ b.double()).double())
    assert served() == [config.text]
    kernels = code.partition("def call")[2].count(".run(")
    assert kernels == (1 if config.values["split_k"] == 1 else 2)


@pytest.mark.parametrize("bias", [(4096, 2048), (2048,), (4096, 1)])
def test_s19_addmm_with_alpha_and_beta(bias: tuple[int, ...]) -> None:
    a, b, c = rand(4096, 25728, dtype=FP16) / 160, rand(25728, 2048, dtype=FP16), rand(*bias, dtype=FP16)
    found, _ = compiled(lambda c, a, b: torch.addmm(c, a, b, alpha=2.0, beta=0.4), c, a, b, config=tile())
    close(found, 0.4 * c.double() + 2.0 * (a.double() @ b.double()))
    assert served() == [tile().text]


def test_s19_linear_with_a_bias() -> None:
    x, w, c = rand(2048, 4096), rand(4096, 4096) / 64, rand(4096)
    found, _ = compiled(F.linear, x, w, c, config=tile())
    close(found, x.double() @ w.double().t() + c.double())
    assert served() == [tile().text]


def test_s19_bmm_is_named_as_uncovered() -> None:
    a, b = rand(10, 128, 64), rand(10, 64, 128)
    found, _ = compiled(torch.bmm, a, b, config=tile())
    close(found, a.double() @ b.double())
    stats = gemmdb.inductor.stats()
    assert (stats["products"], stats["uncovered"]) == ([], {"bmm": 1})


def test_s20_int_mm_and_mixed_mm_of_odd_sizes() -> None:
    a, b = ints(100, 16), ints(32, 16)
    config = tile(block_k=32)
    found, _ = compiled(lambda a, b: torch._int_mm(a, b.t()), a, b, config=config)
    assert torch.equal(found.cpu(), a.cpu().int() @ b.cpu().int().t())
    assert served() == [config.text]
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    x, w = rand(100, 16, dtype=FP16), ints(100, 16)
    found, _ = compiled(lambda x, w: x @ w.t().to(x.dtype), x, w, config=SMALL)
    close(found, x.double() @ w.double().t())
    assert served() == [SMALL.text]


LOADED = """
import sys, torch
package = torch._inductor.aoti_load_package(sys.argv[1])
inputs = torch.load(sys.argv[2])
assert not any(name.split(".")[0] == "gemmdb" for name in sys.modules)
torch.save(package(*inputs), sys.argv[3])
"""


class Offset(torch.nn.Module):
    """A weight that is a view with an offset, behind a plain one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(rand(256, 128) / 12)
        self.register_buffer("storage", rand(64, 256 + 8) / 16)

    def forward(self, x: Any) -> Any:
        return torch.relu(x @ self.first.t()) @ self.storage[:, 8:].t()


@pytest.mark.parametrize("reduce", ["none", "kernel", "fixup"])
def test_s23_aotinductor_packages_run_without_gemmdb(reduce: str, tmp_path: Path) -> None:
    config = tile(block_m=16, split_k=1 if reduce == "none" else 2, reduce=reduce)
    model, x = Offset().eval(), rand(24, 128)
    with torch.no_grad(), gemmdb.inductor.force(config):
        exported = torch.export.export(model, (x,))
        for _ in range(2):
            package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "model.pt2"))
    assert set(served()) == {config.text}
    torch.save((x,), tmp_path / "x.pt")
    arguments = [str(package), str(tmp_path / "x.pt"), str(tmp_path / "y.pt")]
    done = subprocess.run([sys.executable, "-c", LOADED, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    wanted = torch.relu(x.double() @ model.first.double().t()) @ model.storage[:, 8:].double().t()
    close(torch.load(tmp_path / "y.pt"), wanted)


def test_s23_aotinductor_with_dynamic_sizes_and_zero_size_weights(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(rand(64, 128))
            self.empty = torch.nn.Parameter(rand(0, 128))

        def forward(self, x: Any, y: Any) -> Any:
            return torch.addmm(y, x, self.weight.t()), x @ self.empty.t()

    model, x, y = Model().eval(), rand(24, 128), rand(24, 64)
    rows = torch.export.Dim("rows", min=2, max=1024)
    with torch.no_grad(), gemmdb.inductor.force(SMALL):
        exported = torch.export.export(model, (x, y), dynamic_shapes={"x": {0: rows}, "y": {0: rows}})
        package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "model.pt2"))
    run = torch._inductor.aoti_load_package(str(package))
    for m in (2, 24, 1000):
        x, y = rand(m, 128), rand(m, 64)
        found, nothing = run(x, y)
        close(found, y.double() + x.double() @ model.weight.double().t())
        assert nothing.shape == (m, 0)


def test_s24_legality_comes_from_the_devices_own_limit() -> None:
    device = hardware.cuda()
    assert device is not None
    large = tile(block_m=128, block_n=128, block_k=64, warps=8, stages=4)
    problem = Problem.gemm("mm", m=512, n=512, k=512)
    assert illegal(large, problem, device) is None
    found, _ = compiled(lambda a, b: a @ b.t(), rand(512, 512), rand(512, 512), config=large)
    assert served() == [large.text]
    assert "shared memory" in str(illegal(tile(block_m=256, block_n=256, block_k=256), problem, device))
    assert found.isfinite().all()
