"""Inductor's autotune cache: what it says becomes rows, the rest is counted, and bad input is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.foreign import H200, MILLISECONDS, resolve, rows_of, tile, write

from gemmdb.errors import InputError
from gemmdb.exchange.foreign.races import Given
from gemmdb.kernels.config import ATEN
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Status

DIGEST = "c" + "abcdefghij" * 5
CODE = """\
@triton_heuristics.template(
    num_stages=3,
    num_warps=8,
    triton_meta={'signature': {}},
)
@triton.jit
def triton_mm(arg_A, arg_B, out_ptr0):
    EVEN_K : tl.constexpr = True
    GROUP_M : tl.constexpr = 8
    BLOCK_M : tl.constexpr = 64
    BLOCK_N : tl.constexpr = 128
    BLOCK_K : tl.constexpr = 32
"""
MM = "[('cuda', 'torch.bfloat16', 16, 4096, 4096, 1, 0), ('cuda', 'torch.bfloat16', 4096, 512, 1, 4096, 0)]"
ADDMM = (
    "[('cuda', 'torch.bfloat16', 16, 512, 0, 1, 0), ('cuda', 'torch.bfloat16', 16, 4096, 4096, 1, 0), "
    "('cuda', 'torch.bfloat16', 4096, 512, 1, 4096, 0)]"
)
SYSTEM = {"device": {"name": "NVIDIA H200"}, "version": {"triton": "x", "cuda": "13.0"}, "hash": "h"}


@pytest.fixture
def cache(tmp_path):
    """Writes Inductor's folder: `cache({op: {inputs: {precision: {choice: ms}}}})` is the path of the cache in it."""

    def make(content, system=SYSTEM, code=CODE) -> Path:
        (tmp_path / "cache").mkdir()
        (tmp_path / DIGEST[1:3]).mkdir()
        (tmp_path / DIGEST[1:3] / f"{DIGEST}.py").write_text(code)
        return write(tmp_path / "cache" / "0123", {"system": system, "cache": content})

    return make


def test_a_cache_becomes_rows(cache):
    kernel, aten = f"triton_mm-{DIGEST}", f"addmm-alpha=1-beta=1-{DIGEST}"
    path = cache({
        "mm": {MM: {"highest": {f"mm-{DIGEST}": 0.02, kernel: 0.01}}},
        "addmm": {ADDMM: {"highest": {aten: 0.03, f"bias_{aten}": 0.02, kernel: 0.01}}},
    })  # fmt: skip
    rows, left = rows_of("inductor-cache", path, Given(resolve=resolve))
    assert left == {}
    mm, addmm = Problem.gemm("mm", m=16, n=512, k=4096), Problem.gemm("addmm", m=16, n=512, k=4096)
    assert {(r.problem, r.config, r.times.median_us, r.times.aten_us) for r in rows if r.times} == {
        (problem, config, us, 20.0)
        for problem in (mm, addmm)
        for config, us in ((ATEN, 20.0), (tile(64, 128, 32, 8, 3), 10.0))
    }
    assert {row.toolchain.cuda for row in rows} == {"13.0"}
    assert {row.device for row in rows} == {H200}


def test_what_a_cache_cannot_say_is_counted(cache, tmp_path):
    gone = "c" + "z" * 50
    path = cache({
        "mm": {
            MM: {"highest": {f"mm-{DIGEST}": 0.02, f"triton_mm-{gone}": 0.01, "cutlass-x": 0.005}},
            MM.replace("bfloat16", "float32"): {"odd": {f"mm-{DIGEST}": 0.02}},
            MM.replace("bfloat16", "complex64"): {"highest": {f"mm-{DIGEST}": 0.02}},
            MM.replace("cuda", "cpu"): {"highest": {f"mm-{DIGEST}": 0.02}},
        },
        "convolution": {MM: {"highest": {"x": 1.0}}},
    })  # fmt: skip
    rows, left = rows_of("inductor-cache", path, Given(resolve=resolve))
    assert sorted(left.values()) == [1] * 6
    assert [row.status for row in rows] == [Status.SLOW], "a race whose winner is not here decides nothing"


@pytest.mark.parametrize("digest", ["../../etc/passwd" + "a" * 20, "c" + "." * 30, "c/" + "a" * 30])
def test_a_choice_names_no_other_file(cache, digest):
    path = cache({"mm": {MM: {"highest": {f"mm-{DIGEST}": 0.02, f"triton_mm-{digest}": 0.01}}}})
    _, left = rows_of("inductor-cache", path, Given(resolve=resolve))
    assert left == {"a choice that is neither ATen nor a known template": 1}


def test_the_code_of_a_choice_is_not_run(cache, tmp_path):
    races = {"mm": {MM: {"highest": {f"mm-{DIGEST}": 0.02, f"triton_mm-{DIGEST}": 0.01}}}}
    path = cache(races, code=f"open({str(tmp_path / 'ran')!r}, 'w')\n{CODE}")
    assert len(rows_of("inductor-cache", path, Given(resolve=resolve))[0]) == 2
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "no `cache` object"),
        ({"mm": 5}, ": not Inductor's autotune cache"),
        ({"mm": {"os.system('x')": {"highest": {"x": 1.0}}}}, "not the inputs of a GEMM"),
        ({"mm": {MM: {"highest": {"x": "1"}}}}, "a time must be"),
        ({"mm": {MM: {"highest": [1]}}}, "is not an object"),
    ],
)
def test_a_bad_cache_is_refused(cache, content, said):
    path = cache(content)
    with pytest.raises(InputError) as error:
        rows_of("inductor-cache", path, Given(resolve=resolve))
    assert str(path) in str(error.value)
    assert said in str(error.value)


def test_a_device_that_contradicts_the_file_is_refused(cache):
    path = cache({"mm": {}})
    with pytest.raises(InputError, match="names the device 'NVIDIA H200', and --device is 'NVIDIA L4'"):
        rows_of("inductor-cache", path, Given(resolve=resolve, device="NVIDIA L4"))


def tensor(dtype: str, rows: int, columns: int, transposed: bool, batch: tuple[int, ...] = ()) -> tuple[object, ...]:
    """What Inductor's cache says of a dense operand: device, dtype, sizes, strides, offset."""
    strides = (1, rows) if transposed else (columns, 1)
    step = (rows * columns,) if batch else ()
    return ("cuda", f"torch.{dtype}", *batch, rows, columns, *step, *strides, 0)


@settings(max_examples=60)
@given(
    sizes=st.tuples(*(st.integers(2, 9000) for _ in range(3))),
    layout=st.sampled_from(["nn", "nt", "tn", "tt"]),
    dtype=st.sampled_from([("bfloat16", "bf16"), ("float16", "fp16"), ("float32", "fp32")]),
    op=st.sampled_from(["mm", "addmm", "bmm"]),
    bias=st.sampled_from(["1d", "column", "full"]),
    precision=st.sampled_from(["highest", "high"]),
    ms=MILLISECONDS,
)
def test_every_race_of_a_cache_is_its_problem(sizes, layout, dtype, op, bias, precision, ms, tmp_path_factory):
    (m, n, k), (torch, ours) = sizes, dtype
    batch = (5,) if op == "bmm" else ()
    inputs = [tensor(torch, m, k, layout[0] == "t", batch), tensor(torch, k, n, layout[1] == "t", batch)]
    if op == "addmm":
        strides = {"1d": (0, 1), "column": (1, 0), "full": (n, 1)}[bias]
        inputs.insert(0, ("cuda", f"torch.{torch}", m, n, *strides, 0))
    folder = tmp_path_factory.mktemp("code")
    (folder / "cache").mkdir()
    path = write(
        folder / "cache" / "x", {"system": SYSTEM, "cache": {op: {repr(inputs): {precision: {f"{op}-{DIGEST}": ms}}}}}
    )
    ((row,), left) = rows_of("inductor-cache", path, Given(resolve=resolve))
    words = {"addmm": {"bias": bias}, "bmm": {"batch": 5}}.get(op, {})
    tf32 = precision == "high" and ours == "fp32"
    wanted = Problem.gemm(op, m=m, n=n, k=k, dtype=ours, layout=layout, tf32=tf32, **words)
    assert (row.problem, row.config, left) == (wanted, ATEN, {})
    assert row.times is not None
    assert row.times.median_us == ms * 1000
