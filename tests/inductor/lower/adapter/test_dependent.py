"""Which kernels of a graph begin before the one in front of them has ended, in code for a GPU made where there is
none."""

import importlib.util
import re
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from kit import gpu
from kit.inductor import found_without_gpu
from torch._inductor.virtualized import V
from torch.nn.functional import rms_norm, silu

from gemmdb.inductor.lower.adapter import dependent

on_a_gpu = pytest.mark.skipif(
    torch.version.cuda is None or importlib.util.find_spec("triton") is None or torch.cuda.is_available(),
    reason="needs torch's build for CUDA and Triton, and no GPU",
)
LARGE = 4096
"""Rows of a graph whose kernels are too large."""
CONFIGS = {
    "plain": gpu.make("narrow"), "gemv": gpu.make("gemv", pdl=1), "narrow": gpu.make("narrow", pdl=2),
    "fixup": gpu.make("narrow", pdl=1, split_k=2), "tile": gpu.make("tile", pdl=2),
    "sum": gpu.make("tile", pdl=1, split_k=2, reduce="kernel"),
}  # fmt: skip


def layer(x, w, scale, r):
    """A norm, a product, a pointwise kernel that joins it, and a reduction."""
    y = (rms_norm(x + r, (512,)) @ w.t().to(x.dtype)) * scale
    return silu(y) + 1, y.float().sum(-1)


def found():
    """The output code by config, and for a user who has torch's own setting on. Called in a process that pretends to
    have a GPU."""
    from kit import no_gpu

    codes = {}
    for name, config in CONFIGS.items():
        rows = 1 if name == "gemv" else 4
        inputs = (rows, 512, torch.bfloat16), (256, 512, torch.int8), (256, torch.bfloat16), (rows, 512, torch.bfloat16)
        code, events = no_gpu.output_code(layer, config, *inputs)
        codes[name] = code, [event.note for event in events]
    inputs = (LARGE, 512, torch.bfloat16), (256, 512, torch.int8), (256, torch.bfloat16), (LARGE, 512, torch.bfloat16)
    codes["large"] = no_gpu.output_code(layer, CONFIGS["tile"], *inputs)[0], []
    torch.cuda.get_device_capability = lambda *args: (9, 0)
    with torch._inductor.config.patch({"triton.enable_pdl": True}):
        codes["user"] = no_gpu.output_code(layer, CONFIGS["plain"], *inputs)[0], []
    return codes


@pytest.fixture(scope="module")
def codes():
    return found_without_gpu(__file__)


def kernels(code):
    """The kernels of an output code by name, each with its decorator."""
    parts = re.findall(r"async_compile\.triton\('(\w+)', '''(.*?)'''", code, re.DOTALL)
    assert len(parts) > 2
    return dict(parts)


@on_a_gpu
@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "plain"])
def test_all_kernels_beside_ours_begin_early_and_wait_before_anything_else(name, codes):
    code, notes = codes[name]
    assert notes == [""]
    for title, source in kernels(code).items():
        assert "'launch_pdl': True" in source
        assert [source.count(f"gdc_{what}()") for what in ("wait", "launch_dependents")] == [1, 1]
        before = source.partition("tl.extra.cuda.gdc_wait()")[0].partition("@triton.jit")[2]
        assert "gdc_launch_dependents()" not in before
        assert not re.search(r"tl\.(load|store|atomic)", before)
        if title.startswith("triton_tem"):
            assert ("prefetch.L2" in before) == (CONFIGS[name].values["pdl"] == 2)


@on_a_gpu
def test_without_such_a_kernel_of_ours_nothing_does(codes):
    code, notes = codes["plain"]
    assert notes == [""]
    assert "gdc" not in code
    assert "'launch_pdl': True" not in code


@on_a_gpu
def test_kernels_of_many_programs_are_launched_as_always(codes):
    """Those over 2**21 and 2**20 elements; that over the rows of the product reads 2**20."""
    found = {name: "'launch_pdl': True" in source for name, source in kernels(codes["large"][0]).items()}
    assert sorted(found.values()) == [False, True, True]
    assert [early for name, early in found.items() if "rms_norm" in name and name.startswith("triton_per")] == [False]


@on_a_gpu
def test_a_users_own_setting_stays_as_it_is(codes):
    """Inductor's kernels wait where Inductor says. Ours, without the parameter, is launched as always."""
    for title, source in kernels(codes["user"][0]).items():
        assert ("'launch_pdl': True" in source) == (not title.startswith("triton_tem"))
    assert "gdc_wait()" in codes["user"][0]


@pytest.mark.parametrize(("cpp_wrapper", "kind"), [(True, "cuda"), (False, "cpu")])
def test_a_c_wrapper_or_a_cpu_cannot_launch_this_way(cpp_wrapper, kind):
    with V.set_graph_handler(SimpleNamespace(cpp_wrapper=cpp_wrapper)):
        assert not dependent.possible(SimpleNamespace(type=kind))
