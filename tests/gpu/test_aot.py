"""AOTInductor (row S23 of the origins): packages made with gemmdb are run by a process without it."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmdb.inductor
from gemmdb import Config
from gemmdb.kernels.config import ATEN
from gemmdb.kernels.cutlass import compiler, headers, prebuilt

pytestmark = pytest.mark.timeout(300)

LOADED = """
import sys, torch
package, inputs, outputs, gpu = sys.argv[1:]
torch.cuda.set_device(int(gpu))
run = torch._inductor.aoti_load_package(package, device_index=int(gpu))
assert not any(name.split(".")[0] == "gemmdb" for name in sys.modules)
torch.save([run(*each) for each in torch.load(inputs, map_location=f"cuda:{gpu}")], outputs)
"""
CONTROL = """
import sys, torch
x, w = torch.randn(8, 16, device="cuda"), torch.randn(16, 4, device="cuda")
class Product(torch.nn.Module):
    def forward(self, x, w):
        return torch.relu(x @ w)
exported = torch.export.export(Product(), (x, w))
torch._inductor.aoti_compile_and_package(exported, package_path=sys.argv[1])
torch.save([(x, w)], sys.argv[2])
"""


@functools.cache
def cxx() -> str:
    """A C++ compiler whose libraries share the C++ library of the process that loads them: the system's g++, else $CXX.
    Packages of a compiler with a C++ library of its own, or with a newer one, do not load, with gemmdb or without."""
    for name in ("g++", os.environ.get("CXX", "g++")):
        with tempfile.TemporaryDirectory() as folder:
            source, made = Path(folder, "probe.cpp"), Path(folder, "probe.so")
            source.write_text('#include <iostream>\nextern "C" void say() { std::cout << 1; }\n')
            done = subprocess.run([name, "-shared", "-fPIC", "-o", made, source], capture_output=True, check=False)
            if done.returncode == 0 and b"GLIBCXX_" in made.read_bytes():
                return name
    pytest.skip("needs a C++ compiler that does not link its own C++ library")


@pytest.fixture(autouse=True)
def compiler_that_shares(clean: None) -> Iterator[None]:
    import torch._inductor.config as inductor

    with inductor.patch({"cpp.cxx": (None, cxx())}):
        yield


def process(program: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-c", program, *map(str, arguments)]
    environ = {**os.environ, "CXX": cxx()}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


@functools.cache
def lame() -> str:
    """What becomes of a package of one plain GEMM that was made without gemmdb, empty when it runs."""
    with tempfile.TemporaryDirectory() as folder:
        package, inputs, outputs = (Path(folder, name) for name in ("control.pt2", "x.pt", "y.pt"))
        for program, arguments in ((CONTROL, (package, inputs)), (LOADED, (package, inputs, outputs, 0))):
            done = process(program, *arguments)
            if done.returncode:
                return f"exit code {done.returncode} {done.stderr[-300:]}"
    return ""


def package(model: Any, inputs: Sequence[Any], config: Config, path: Path, **how: Any) -> Path:
    """The model packaged with all its GEMMs taking `config`."""
    with torch.no_grad(), gemmdb.inductor.force(config):
        exported = torch.export.export(model.eval(), tuple(inputs), **how)
        return Path(torch._inductor.aoti_compile_and_package(exported, package_path=str(path)))


def run(made: Path, inputs: Sequence[Sequence[Any]], gpu: int = 0) -> list[Any]:
    """What a fresh process without gemmdb gets from the package for each of the inputs."""
    paths = made.with_suffix(".x"), made.with_suffix(".y")
    torch.save([tuple(each) for each in inputs], paths[0])
    done = process(LOADED, made, *paths, gpu)
    if done.returncode < 0 and lame():
        pytest.skip(f"AOTInductor crashes here without gemmdb, too: {lame()}")
    assert done.returncode == 0, done.stderr[-2000:]
    return list(torch.load(paths[1]))


class Offset(torch.nn.Module):
    """A weight that is a view with an offset, behind a plain one."""

    def __init__(self, rand: Callable[..., Any]) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(rand(256, 128) / 12)
        self.register_buffer("storage", rand(64, 256 + 8) / 16)

    def forward(self, x: Any) -> Any:
        return torch.relu(x @ self.first.t().to(x.dtype)) @ self.storage[:, 8:].t().to(x.dtype)


SPLITS = {"none": {}, "kernel": {"split_k": 2, "reduce": "kernel"}, "fixup": {"split_k": 2, "reduce": "fixup"}}


@pytest.mark.parametrize("reduce", SPLITS)
def test_s23_packages_run_without_gemmdb(kit: Any, make: Any, tmp_path: Path, reduce: str) -> None:
    config, model, x = make("tile", **SPLITS[reduce]), Offset(kit.rand), kit.rand(24, 128)
    made = package(model, (x,), config, tmp_path / "model.pt2")
    assert kit.served() == [config.text] * 2
    (found,) = run(made, [(x,)])
    kit.close(found, model(x.double()))


@pytest.mark.parametrize("kernel", ["tile", "persistent", "inductor_persistent_tma"])
def test_s23_kernels_that_build_tensor_maps(kit: Any, make: Any, tmp_path: Path, kernel: str) -> None:
    """Only where the wrapper gives each program room for its own; many programs, so that a lack of it would show."""
    config = make("tile", load="tma") if kernel == "tile" else None
    if kernel == "persistent":
        config = make("persistent", block_m=64, block_n=64)
    blocks = {"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "warps": 4, "stages": 3}
    config = config or Config.of("triton", kernel, **blocks)
    x, w = kit.rand(512, 512), kit.rand(1024, 512) / 16

    class Linear(torch.nn.Module):  # type: ignore[misc]  # torch is not analysed
        def forward(self, x: Any, w: Any) -> Any:
            return torch.relu(x @ w.t())

    made = package(Linear(), (x, w), config, tmp_path / "model.pt2")
    (product,) = gemmdb.inductor.stats()["products"]
    if "room for the tensor maps" in product["note"]:
        assert product["config"] == ATEN.text
    else:
        assert (product["config"], product["note"]) == (config.text, "")
    (found,) = run(made, [(x, w)])
    kit.close(found, torch.relu(x.double() @ w.double().t()))


class Symbolic(torch.nn.Module):
    """Products with a symbolic batch and a symbolic number of rows, one of them with a weight of no rows."""

    def __init__(self, rand: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(rand(64, 128))
        self.empty = torch.nn.Parameter(rand(0, 128))

    def forward(self, x: Any, y: Any, z: Any) -> Any:
        rows = torch.addmm(y, x, self.weight.t().to(x.dtype))
        return rows, x @ self.empty.t().to(x.dtype), torch.bmm(z, z.transpose(1, 2))


def test_s23_several_dynamic_sizes_and_a_weight_of_size_zero(kit: Any, make: Any, tmp_path: Path) -> None:
    def inputs(m: int, batch: int) -> tuple[Any, ...]:
        return kit.rand(m, 128), kit.rand(m, 64), kit.rand(batch, 16, 32)

    model, config = Symbolic(kit.rand), make("tile")
    rows, batch = torch.export.Dim("rows", min=2, max=1024), torch.export.Dim("batch", min=2, max=64)
    shapes = {"x": {0: rows}, "y": {0: rows}, "z": {0: batch}}
    made = package(model, inputs(24, 3), config, tmp_path / "model.pt2", dynamic_shapes=shapes)
    assert config.text in kit.served()
    given = [inputs(m, number) for m, number in ((2, 2), (24, 3), (1000, 64))]
    for each, found in zip(given, run(made, given), strict=True):
        for one, wanted in zip(found, model(*(tensor.double() for tensor in each)), strict=True):
            kit.close(one, wanted)


def test_s23_the_same_model_is_packaged_again(kit: Any, make: Any, tmp_path: Path) -> None:
    config, model, x = make("tile"), Offset(kit.rand), kit.rand(24, 128)
    made = [package(model, (x,), config, tmp_path / f"{number}.pt2") for number in range(2)]
    assert kit.served() == [config.text] * 4
    for each in made:
        kit.close(run(each, [(x,)])[0], model(x.double()))


class Quantised(torch.nn.Module):
    """An int8 weight with a scale per output channel."""

    def __init__(self, kit: Any) -> None:
        super().__init__()
        self.register_buffer("weight", kit.ints(1008, 1040))
        self.register_buffer("scale", torch.rand(1008, device="cuda", dtype=torch.bfloat16) / 64)

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.linear(x, self.weight.to(x.dtype)) * self.scale


@pytest.mark.parametrize("freezing", [False, True])
def test_s23_a_quantised_linear(kit: Any, make: Any, tmp_path: Path, freezing: bool) -> None:
    import torch._inductor.config as inductor

    config, model, x = make("tile"), Quantised(kit), kit.rand(40, 1040)
    with inductor.patch(freezing=freezing):
        made = package(model, (x,), config, tmp_path / "model.pt2")
    assert kit.served() == [config.text]
    kit.close(run(made, [(x,)])[0], model(x.double()))


@pytest.mark.skipif(compiler() is None or headers() is None, reason="needs nvcc and nvidia-cutlass")
def test_cutlass_is_linked_into_the_package(kit: Any, tmp_path: Path) -> None:
    config, model, x = Config.of(
        "cutlass", "gemm", tile_m=64, tile_n=64, tile_k=128, cluster_m=1, cluster_n=1, schedule="pingpong", split_k=1,
        swizzle=1, raster="auto", swap=1,
    ), Quantised(kit), kit.rand(40, 1040)  # fmt: skip
    made = package(model, (x,), config, tmp_path / "model.pt2")
    assert kit.served() == [config.text]
    kit.close(run(made, [(x,)])[0], model(x.double()))


@pytest.mark.skipif(prebuilt.archive() is None, reason="no kernels are compiled in advance")
def test_a_kernel_that_is_compiled_in_advance_is_linked(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without nvcc and CUTLASS's headers. The config is what the shipped table answers."""
    import gemmdb.kernels.cutlass as kernels

    monkeypatch.setattr(kernels, "headers", lambda: None)
    monkeypatch.setenv("PATH", os.pathsep.join(p for p in os.get_exec_path() if not Path(p, "nvcc").exists()))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDACXX", raising=False)
    x, w = (torch.randint(-128, 128, (rows, 4096), device="cuda", dtype=torch.int8) for rows in (512, 4096))

    class Model(torch.nn.Module):
        def forward(self, x: Any, w: Any) -> Any:
            return torch._int_mm(x, w.t())

    gemmdb.inductor.enable()
    exported = torch.export.export(Model(), (x, w))
    made = Path(torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "model.pt2")))
    (config,) = kit.served()
    assert config.startswith("cutlass:gemm")
    assert torch.equal(run(made, [(x, w)])[0].cpu(), x.cpu().int() @ w.cpu().int().t())


class Linear(torch.nn.Module):
    """A linear with a bias, and a GEMM of a view. The view is of a computed weight: torch 2.11 folds a view of a
    parameter into memory that is too small, and then ATen's GEMMs end the process, too."""

    def __init__(self, rand: Callable[..., Any]) -> None:
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(rand(512, 1024) / 32), torch.nn.Parameter(rand(512))

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.linear(x, self.weight, self.bias) @ (self.weight * 2)[:, 512:]


@pytest.mark.parametrize("folding", [False, True])
def test_an_algorithm_of_cublaslt_is_called_without_gemmdb(kit: Any, tmp_path: Path, folding: bool) -> None:
    import torch._inductor.config as inductor

    from gemmdb.generators.measure.cuda import cublaslt

    torch.mm(kit.rand(16, 16), kit.rand(16, 16))  # It loads the library.
    model, x, made = Linear(kit.rand), kit.rand(40, 1024), tmp_path / "model.pt2"
    options = {"aot_inductor.use_runtime_constant_folding": folding}
    with (
        torch.no_grad(),
        gemmdb.inductor.force(lambda problem: cublaslt.proposed(problem, 8)[0]),
        inductor.patch(options),
    ):
        exported = torch.export.export(model.eval(), (x,))
        torch._inductor.aoti_compile_and_package(exported, package_path=str(made))
    assert len(kit.served()) == 2
    assert all(text.startswith("cublaslt") for text in kit.served()), gemmdb.inductor.stats()["products"]
    (found,) = run(made, [(x,)])
    kit.close(found, model(x))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("reduce", SPLITS)
def test_s23_packages_run_on_another_gpu(kit: Any, make: Any, tmp_path: Path, reduce: str) -> None:
    model, x = Offset(kit.rand), kit.rand(24, 128)
    made = package(model, (x,), make("tile", **SPLITS[reduce]), tmp_path / "model.pt2")
    (found,) = run(made, [(x,)], gpu=1)
    assert found.device.index == 1
    kit.close(found.cpu(), model(x.double()).cpu())
