"""Our CUDA kernel for int4 weights in Inductor, as far as no GPU is needed."""

import re

import pytest

torch = pytest.importorskip("torch")

from kit.gemm_programs import rand
from kit.lowered import rendered
from torch._inductor.virtualized import V
from torch.nn.functional import linear

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.inductor.decide.session import FORCED
from gemmdb.inductor.lower import cutlass as cutlass_kernels
from gemmdb.inductor.lower.adapter import cutlass
from gemmdb.inductor.lower.triton import Refused
from gemmdb.kernels.cutlass import prebuilt

CONFIG = Config.of("cutlass", "int4", tile_m=72, tile_n=128, tile_k=128, groups=2, split_k=1)
M, N, K = 48, 512, 1024


def problem(**rest):
    return Problem.gemm("mixed_mm", m=M, n=N, k=K, weight_dtype="int4", packing="low-first", **rest)


def nodes(tensor, zeros=None, **moved):
    """The activation and the weight in bytes, with groups of 128."""
    kinds = {"a": ([M, K], torch.bfloat16), "b": ([N, K // 2], torch.uint8), "scale": ([N, 8], torch.bfloat16)}
    if zeros is not None:
        kinds["zeros"] = [N, 8], zeros
    return {
        name: tensor(name, sizes, [sizes[1], 1], dtype, moved.get(name, 0)) for name, (sizes, dtype) in kinds.items()
    }


def lower(tensor, how, **rest):
    return cutlass_kernels.int4(CONFIG, problem(**rest), nodes(tensor, **how), (M, N, K), FORCED)


@pytest.mark.parametrize(
    ("zeros", "dtype", "kind"),
    [("none", None, 0), ("bf16", torch.bfloat16, 1)],
)
def test_the_weight_its_scales_and_zero_points_are_arguments(tensor, zeros, dtype, kind):
    kernel, source = rendered(lower(tensor, {"zeros": dtype}, zeros=zeros))
    (signature,) = re.findall(r"(int gemmdb_cutlass_[0-9a-f]{24}\(.*\)) {", source)
    assert kernel.get_signature() == signature
    more = [] if dtype is None else ["zeros"]
    assert kernel.args.python_argdefs()[1][: 3 + len(more)] == ["a", "b", "scale", *more]
    assert kernel.get_dynamic_shape_args() == [M, N, K, K, K // 2, 0, 0, 0, 0]
    assert list(V.graph.wrapper_code.defined) == [prebuilt.name(CONFIG, problem(zeros=zeros))]
    assert f"#define GEMMDB_ZEROS {kind}\n" in source


def test_zero_points_of_another_dtype_are_another_kernels(tensor):
    with pytest.raises(cutlass_kernels.Unavailable, match="zero points of fp32"):
        lower(tensor, {"zeros": torch.float32}, zeros="bf16")


@pytest.mark.parametrize("name", ["a", "b", "scale"])
def test_an_operand_that_begins_between_16_bytes_is_refused(tensor, name):
    with pytest.raises(Refused, match="16 bytes"):
        lower(tensor, {name: 1}, zeros="none")


def model(x, packed, scale):
    numbers = torch.stack([packed & 15, packed >> 4], -1).view(N, 8, 128).to(x.dtype)
    return linear(x, ((numbers - 8) * scale.unsqueeze(-1)).view(N, K))


def compiled(kit):
    x, scale = rand(M, K), rand(N, 8).abs() / 16
    packed = torch.randint(0, 256, (N, K // 2), dtype=torch.uint8)
    with gemmdb.inductor.force(CONFIG), torch.no_grad():
        kit.close(torch.compile(model)(x, packed, scale), model(x, packed, scale))
    (entry,) = gemmdb.inductor.stats()["products"]
    return entry


def test_a_program_reaches_the_kernel(kit, reached):
    entry = compiled(kit)
    assert len(reached) == 1
    assert "that far" in entry["note"]


def test_the_next_best_takes_the_place_of_a_kernel_that_is_not_there(kit, reached, monkeypatch):
    monkeypatch.setattr(cutlass, "link_rejection", lambda: cutlass.Rejected("cannot be linked"))
    entry = compiled(kit)
    assert reached == []
    assert "cannot be linked" in entry["note"]
