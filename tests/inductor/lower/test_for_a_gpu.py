"""What a GPU would be handed: the lowering as it is, with an H200's tables and rules, up to where a GPU is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.devices import H200  # noqa: E402
from torch._inductor import config as inductor_config  # noqa: E402
from torch._inductor import graph, utils  # noqa: E402
from torch._inductor.fx_passes import mkldnn_fusion  # noqa: E402
from torch._inductor.lowering import lowerings  # noqa: E402

import gemmdb.inductor  # noqa: E402
from gemmdb import Config, Problem  # noqa: E402
from gemmdb.inductor.adapter import cutlass, inductor_templates, templates  # noqa: E402
from gemmdb.inductor.lower import triton  # noqa: E402
from gemmdb.inductor.match import extract  # noqa: E402

linear = torch.nn.functional.linear
NARROW = Config.of(
    "triton", "narrow", block_m=16, block_n=64, block_k=64, split_k=2, swap=0, stagger=1, rows="mask", dequant="cast",
    warps=4, stages=3,
)  # fmt: skip
TILE = Config.of(
    "triton", "tile", block_m=64, block_n=128, block_k=64, group_m=8, split_k=1, reduce="none", swap=0, load="pointer",
    dequant="cast", warps=4, stages=3,
)  # fmt: skip
TMA = Config.of("triton", "tile", **{**TILE.values, "load": "tma"})
PERSISTENT = Config.of(
    "triton", "persistent", block_m=64, block_n=128, block_k=64, group_m=8, swap=0, dequant="cast", resident=1,
    warps=4, stages=3,
)  # fmt: skip
INDUCTOR_TMA = Config.of(
    "triton", "inductor_persistent_tma", block_m=64, block_n=128, block_k=64, group_m=8, warps=4, stages=3
)
CUTLASS = Config.of(
    "cutlass", "gemm", tile_m=64, tile_n=64, tile_k=128, cluster_m=1, cluster_n=1, schedule="pingpong", split_k=1,
    swizzle=1, raster="auto", swap=1,
)  # fmt: skip


MAPPED = [TMA, PERSISTENT, INDUCTOR_TMA, CUTLASS]


@pytest.fixture(autouse=True)
def reached(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that would have been generated; what is served instead is ATen. Inductor has to think of
    inputs on a CPU as it does of those on a GPU, which it copies when they begin at no multiple of 16 bytes although
    the one did that it compiled for."""
    found: list[str] = []

    def stop(kernel: Any, *rest: object) -> object:
        found.append(getattr(kernel, "template", "other"))
        raise triton.Refused("that far")

    monkeypatch.setattr(graph, "should_assume_input_aligned", utils.tensor_is_aligned)
    # A CPU with bf16 instructions has a product of its own for frozen weights.
    monkeypatch.setattr(mkldnn_fusion, "is_mkldnn_bf16_supported", lambda device: False, raising=False)
    monkeypatch.setattr(extract, "device", lambda of: H200)
    monkeypatch.setattr(templates, "multiprocessors", lambda node: 132)
    monkeypatch.setattr(templates, "product", stop)
    monkeypatch.setattr(inductor_templates, "product", stop)
    monkeypatch.setattr(inductor_templates, "tma_constants", lambda *orders: {})
    monkeypatch.setattr(cutlass, "missing", lambda: "")
    monkeypatch.setattr(cutlass, "product", stop)
    return found


def asked(model: Callable[..., Any], *inputs: Any, config: Any, **options: Any) -> dict[str, Any]:
    """The one product of `model` in the journal, compiled with `config`; the result is right."""
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    with torch.no_grad(), gemmdb.inductor.force(config, "test"):
        found = torch.compile(model, **options)(*inputs)
    wanted = model(*inputs).double()
    assert (found.double() - wanted).abs().max() <= 0.02 * wanted.abs().max()
    assert gemmdb.inductor.stats()["errors"] == []
    (product,) = gemmdb.inductor.stats()["products"]
    return dict(product)


def ints(*sizes: int) -> Any:
    return torch.randint(-9, 9, sizes, dtype=torch.int8)


def rand(*sizes: int) -> Any:
    return torch.randn(*sizes).bfloat16()


def inside(rows: int, columns: int, offset: int) -> Any:
    """A matrix that begins `offset` elements into its storage."""
    return rand(rows * columns + offset)[offset:].view(rows, columns)


@pytest.mark.parametrize(("config", "reason"), [(NARROW, "no bound"), (CUTLASS, "depends on N and K")])
def test_a_symbolic_n_of_an_int8_weight_has_a_range(config: Config, reason: str, reached: list[str]) -> None:
    w, s = ints(1024, 512), torch.rand(1024).bfloat16()
    torch._dynamo.mark_dynamic(w, 0)
    torch._dynamo.mark_dynamic(s, 0)
    product = asked(lambda x, w, s: linear(x, w.to(x.dtype)) * s, rand(16, 512), w, s, config=config)
    assert product["ranges"] == {"n": [2, None]}
    assert reason in product["note"]
    assert reached == []


def test_an_input_keeps_the_alignment_that_it_has_in_its_storage(reached: list[str]) -> None:
    """In Inductor's IR every input and constant begins at offset 0."""
    seen = []

    def by_alignment(problem: Problem) -> Config:
        seen.append((problem.a.layout.align, problem.b.layout.align))
        return PERSISTENT if seen[-1] == (8, 8) else TILE

    w = rand(512, 256)
    for x, aligned in ((inside(48, 256, 1), 1), (inside(48, 256, 4), 4), (inside(48, 256, 8), 8)):
        product = asked(lambda x, w: x @ w.t(), x, w, config=by_alignment, dynamic=False)
        assert f"a=bf16:row:{aligned}" in product["problem"]
        assert product["note"] == "that far"
    asked(lambda x, w: x @ w.t(), w, inside(48, 256, 2), config=by_alignment, dynamic=False)
    assert set(seen) == {(1, 8), (4, 8), (8, 8), (8, 2)}
    assert reached == ["tile", "tile", "persistent", "tile"]


def test_a_copy_of_a_misaligned_input_is_aligned(reached: list[str]) -> None:
    x, w = inside(48, 256, 1), rand(512, 256)
    asked(lambda x, w: (x + 1) @ w.t(), x, w, config=PERSISTENT, dynamic=False)
    assert reached == ["persistent"]


@pytest.mark.parametrize("config", MAPPED, ids=lambda config: config.name)
def test_tensor_maps_of_what_may_begin_anywhere_are_refused(config: Config, reached: list[str]) -> None:
    x, w = inside(48, 256, 1), rand(512, 256)
    product = asked(lambda x, w: x @ w.t(), x, w, config=config, dynamic=False)
    assert "start at multiples of 16 bytes" in product["note"]
    # Inductor promises nothing of what an operator that it calls makes of such an input.
    product = asked(lambda x, w: x.sort().values @ w.t(), x, w, config=config, dynamic=False)
    assert "aligned to 16 bytes" in product["note"]
    assert reached == []
    asked(lambda x, w: x.sort().values @ w.t(), inside(48, 256, 8), w, config=config, dynamic=False)
    assert len(reached) == 1


@pytest.mark.parametrize("config", [TILE, *MAPPED], ids=lambda config: config.name)
def test_a_misaligned_constant_is_refused(config: Config, reached: list[str]) -> None:
    """Inductor tells Triton of every constant that it is aligned."""
    model = torch.nn.Linear(256, 512).bfloat16().eval()
    x = rand(48, 256)
    for weight, bias in ((1, 0), (4, 0), (8, 1), (8, 8)):
        model.weight = torch.nn.Parameter(inside(512, 256, weight))
        model.bias = torch.nn.Parameter(rand(512 + bias)[bias:])
        with inductor_config.patch(freezing=True):
            product = asked(model, x, config=config)
        assert ("16 bytes" in product["note"]) == ((weight, bias) != (8, 8))
        assert f"b=bf16:col:{weight}" in product["problem"]
    assert len(reached) == 1


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_a_scale_that_may_begin_anywhere_is_refused(offset: int, reached: list[str]) -> None:
    """CUTLASS wants every pointer aligned, and no key says how a scale is."""
    a, b, s = ints(64, 512), ints(1024, 512), torch.rand(1024 + offset)[offset:]
    integer = asked(lambda a, b, s: (torch._int_mm(a, b.t()) * s).bfloat16(), a, b, s, config=CUTLASS, dynamic=False)
    x, s = rand(64, 512), rand(1024 + 2 * offset)[2 * offset :]
    mixed = asked(lambda x, w, s: linear(x, w.to(x.dtype)) * s, x, b, s, config=CUTLASS, dynamic=False)
    for product in (integer, mixed):
        assert ("aligned to 16 bytes" in product["note"]) == (offset == 1)
    assert len(reached) == (0 if offset == 1 else 2)


@pytest.mark.parametrize("offset", [1, 8])
def test_a_column_of_biases_that_may_begin_anywhere_is_refused(offset: int, reached: list[str]) -> None:
    bias, a, b = inside(33, 1, offset), rand(33, 512), rand(512, 1024)
    product = asked(torch.addmm, bias, a, b, config=CUTLASS, dynamic=False)
    assert ("aligned to 16 bytes" in product["note"]) == (offset == 1)
    assert len(reached) == (offset == 8)


@pytest.mark.parametrize("config", [TMA, PERSISTENT], ids=lambda config: config.name)
def test_a_symbolic_stride_has_no_tensor_map(config: Config, reached: list[str]) -> None:
    """The width that a graph is compiled with may be a multiple of 16 bytes where a later one is not."""

    def left(base: Any, other: Any) -> Any:
        return base[:, :256] @ other.t()

    def right(base: Any, other: Any) -> Any:
        return other @ base[:, :256].t()

    narrow, w = rand(48, 264), rand(512, 256)
    torch._dynamo.mark_dynamic(narrow, 1, min=257, max=4096)
    for model in (left, right):
        assert "a symbolic length apart" in asked(model, narrow, w, config=config)["note"]
    assert reached == []
    run = torch.compile(lambda x: x @ w.t())
    torch._dynamo.reset()
    with gemmdb.inductor.force(config):
        for width in (264, 272, 259):
            x = rand(48, width)[:, :256]
            assert (run(x).double() - (x @ w.t()).double()).abs().max() <= 1
    assert reached == [config.kernel]
    # A symbol times a multiple of 16 bytes is a multiple.
    blocks = rand(48, 33, 8)
    torch._dynamo.mark_dynamic(blocks, 1, min=33, max=64)
    asked(lambda x, w: x.view(48, -1)[:, :256] @ w.t(), blocks, w, config=config)
    assert reached == [config.kernel] * 2


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("config", [TILE, NARROW, TMA, PERSISTENT, CUTLASS], ids=lambda config: config.text[:40])
def test_rows_that_come_out_of_data_need_a_bound(config: Config, bounded: bool, reached: list[str]) -> None:
    """Nothing can be guarded, so offsets of 32 bits, and a workspace, must be enough by what is known."""
    w = rand(512, 256)

    def chosen(x: Any, which: Any) -> Any:
        return x[which] @ w.t()

    def repeated(x: Any, which: Any) -> Any:
        rows = which.sum().item()
        torch._check(rows >= 1)
        return x[:1].repeat(rows, 1) @ w.t()

    def at_least_one(x: Any, which: Any) -> Any:
        x = x[which]
        torch._check(x.shape[0] >= 1)
        return x @ w.t()

    bound = at_least_one if config is CUTLASS else chosen
    which = torch.arange(200) % 3 == 0
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        product = asked(bound if bounded else repeated, rand(200, 256), which, config=config)
    if bounded or config is CUTLASS:  # Its offsets have 64 bits.
        assert (product["note"], len(reached)) == ("that far", 1)
        return
    reason = "no bound" if config is NARROW else "offsets are 32 bits wide, and what comes out of data has no bound"
    assert reason in product["note"]
    assert reached == []


@pytest.mark.parametrize(("config", "reason"), [(TILE, "nothing to sum"), (CUTLASS, "size zero")], ids=["k", "m"])
def test_sizes_that_may_be_zero(config: Config, reason: str, reached: list[str]) -> None:
    def model(x: Any, which: Any) -> Any:
        x = x[which]
        return x.t() @ x if config is TILE else x @ torch.ones(256, 64).bfloat16()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        product = asked(model, rand(200, 256), torch.arange(200) < 40, config=config)
    assert reason in product["note"]
    assert reached == []


@pytest.mark.skipif(torch.__version__ < "2.12", reason="a CPU multiplies fp8 with scales of rows from torch 2.12 on")
def test_a_range_of_an_fp8_product_is_divided(reached: list[str]) -> None:
    """The shipped table of the H200 has other winners at more rows."""

    def fp8(rows: int) -> Any:
        return torch.randn(rows, 4096).to(torch.float8_e4m3fn)

    def model(a: Any, b: Any, one: Any, other: Any) -> Any:
        return torch._scaled_mm(a, b.t(), one, other, out_dtype=torch.bfloat16, use_fast_accum=True)

    inputs = fp8(16), fp8(4096), torch.rand(16, 1), torch.rand(1, 4096)
    for tensor in (inputs[0], inputs[2]):
        torch._dynamo.mark_dynamic(tensor, 0, min=2, max=48)
    torch._dynamo.reset()
    gemmdb.inductor.reset_stats()
    gemmdb.inductor.enable(tables=[])
    try:
        found, wanted = torch.compile(model)(*inputs), model(*inputs)
    finally:
        gemmdb.inductor.disable()
    assert (found.double() - wanted.double()).abs().max() <= 0.02 * wanted.double().abs().max()
    (product,) = gemmdb.inductor.stats()["products"]
    assert gemmdb.inductor.stats()["errors"] == []
    assert product["note"].startswith("m from ")
    assert product["note"].endswith(": that far")
    assert {*reached} == {"narrow"}


def test_a_symbolic_stride_is_read_by_pointers(reached: list[str]) -> None:
    narrow, w = rand(48, 264), rand(512, 256)
    torch._dynamo.mark_dynamic(narrow, 1, min=257, max=4096)
    asked(lambda x, w: x[:, :256] @ w.t(), narrow, w, config=TILE)
    assert reached == ["tile"]


EARLY = {
    "per channel": lambda x, w, s: linear(x, w.to(x.dtype) * s[:, None]),
    "per tensor": lambda x, w, s: linear(x, w.to(x.dtype) * s[:1]),
    "transposed": lambda x, w, s: x @ (s * w.t().to(x.dtype)),
    "of a batch": lambda x, w, s: linear(x.view(2, 24, -1)[:, 1:], w.to(x.dtype) * s[:, None]),
}


@pytest.mark.parametrize("weight", [torch.int8, torch.uint8])
@pytest.mark.parametrize("config", [NARROW, TILE, PERSISTENT, CUTLASS], ids=lambda config: config.name)
@pytest.mark.parametrize("name", EARLY)
def test_an_early_scale_in_fp16(name: str, config: Config, weight: Any, reached: list[str]) -> None:
    """Kernels scale their fp32 accumulator. What is not to be one scales the weight, as the program does: the product
    of the bare integers would overflow."""
    x, s = torch.full((48, 512), 16.0).half(), (torch.rand(1024) / 64).half()
    w = torch.randint(90, 120, (1024, 512), dtype=weight)
    asked_about = []

    def chosen(problem: Problem) -> Config:
        asked_about.append(problem)
        return config

    with torch.no_grad(), gemmdb.inductor.force(chosen):
        found = torch.compile(EARLY[name], dynamic=False)(x, w, s)
    (product,) = gemmdb.inductor.stats()["products"]
    assert product["note"] == "that far"
    assert len(reached) == 1
    late = Problem.gemm(
        "mixed_mm", m=46 if name == "of a batch" else 48, n=1024, k=512, dtype="fp16",
        weight_dtype="uint8" if weight is torch.uint8 else "int8", fusion="scale",
    )  # fmt: skip
    assert set(asked_about) == {late}
    torch._dynamo.reset()
    assert torch.equal(found, torch.compile(EARLY[name], dynamic=False)(x, w, s))
    assert found.isfinite().all()


@pytest.mark.parametrize("config", [TILE, CUTLASS], ids=lambda config: config.name)
def test_an_early_scale_of_any_number_of_rows(config: Config, reached: list[str]) -> None:
    x, w, s = torch.full((48, 512), 16.0).half(), ints(1024, 512).fill_(100), (torch.rand(1024) / 64).half()
    torch._dynamo.mark_dynamic(x, 0)
    product = asked(EARLY["per channel"], x, w, s, config=config)
    assert (product["note"], product["ranges"]) == ("that far", {"m": [2, None]})
    assert len(reached) == 1


def torchao(a: Any, b: Any, rows: Any, columns: Any) -> Any:
    """A linear of int8 activations, as torchao writes it for a GPU."""
    product = torch._int_mm(a.reshape(-1, a.shape[-1]), b.t())
    product = (product * rows.reshape(-1, 1).expand(product.shape)).bfloat16()
    return (product * columns.flatten()).reshape(*a.shape[:-1], -1).bfloat16()


def biased(a: Any, b: Any, rows: Any, columns: Any) -> Any:
    """What is stored is of the dtype after the bias."""
    product = torch._int_mm(a.reshape(-1, a.shape[-1]), b.t())
    product = (product * rows.reshape(-1, 1).expand(product.shape)).bfloat16()
    product = (product * columns.flatten()).reshape(*a.shape[:-1], -1)
    return (product + columns.flatten().bfloat16()).bfloat16()


def normed(a: Any, b: Any, rows: Any, columns: Any) -> Any:
    return torch.nn.functional.rms_norm(torchao(a, b, rows, columns), (b.shape[0],))


def with_zero_points(a: Any, b: Any, rows: Any, columns: Any) -> Any:
    """As torchao writes it with asymmetric activations."""
    product = torch._int_mm(a.reshape(-1, a.shape[-1]), b.t())
    product = (product * rows.reshape(-1, 1).expand(product.shape)).bfloat16()
    correction = (3 * rows.reshape(-1, 1)) * b.sum(dim=-1).to(rows.dtype)
    return (product - correction.bfloat16()) * columns.flatten()


def of_integers(m: int = 32, n: int = 1024, k: int = 512) -> tuple[Any, ...]:
    return ints(2, m // 2, k), ints(n, k), torch.rand(2, m // 2, 1).bfloat16(), torch.rand(n, 1)


INDUCTOR = Config.of("triton", "inductor_mm", block_m=64, block_n=128, block_k=64, group_m=8, warps=4, stages=3)
SPLIT = Config.of("triton", "tile", **{**TILE.values, "split_k": 2, "reduce": "kernel"})
SCALED = [
    *((model, config, False) for model in (torchao, biased, normed, with_zero_points) for config in (TILE, CUTLASS)),
    *((torchao, config, False) for config in (PERSISTENT, INDUCTOR, NARROW)),
    *((torchao, config, True) for config in (TILE, CUTLASS)),
]


@pytest.mark.parametrize(
    ("model", "config", "dynamic"), SCALED, ids=[f"{model.__name__}-{c.name}-{many}" for model, c, many in SCALED]
)
def test_the_scales_of_an_integer_product_are_the_kernels(
    model: Any, config: Config, dynamic: bool, reached: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever follows: the kernel itself stores two bytes per element."""
    stored, scales = [], []
    macros = {"row_scale": "ROW_SCALE 1", "scale": "SCALE 1", "bias": "BIAS 1"}

    def stop(kernel: Any, operands: Any, *rest: Any, **options: Any) -> Any:
        if config is CUTLASS:
            stored.append(rest[1])
            scales.append([name for name in macros if name in operands])
            assert all((f"GEMMDB_{macros[name]}\n" in kernel.source) == (name in scales[0]) for name in macros)
        else:
            out, epilogue = (rest[0], options["epilogue"]) if config is INDUCTOR else (rest[0][0], rest[1])
            stored.append(out)
            scales.append(["row_scale" if node.get_size()[-1] == 1 else "scale" for node in epilogue.scales])
            scales[0] += [] if epilogue.bias is None else ["bias"]
            assert epilogue.integer
        raise triton.Refused("that far")

    for module in (templates, inductor_templates, cutlass):
        monkeypatch.setattr(module, "product", stop)
    inputs = of_integers()
    if dynamic:
        for tensor in (inputs[0], inputs[2]):
            torch._dynamo.mark_dynamic(tensor, 1, min=2, max=64)
    product = asked(model, *inputs, config=config)
    assert product["problem"].startswith("int_mm m=32 n=1024 k=512 ")
    assert " out=bf16 bias=none scalars=unit fusion=scale " in product["problem"]
    assert product["note"] == "that far"
    assert stored == [torch.bfloat16]
    both = ["row_scale", "scale"]
    assert scales == [{with_zero_points: ["row_scale"], biased: [*both, "bias"]}.get(model, both)]


def test_partial_sums_of_integers_are_scaled_as_floats(reached: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows the kernel sums its slices of K, and is generated here for the CPU."""

    def slices(kernel: Any, operands: Any, out: Any, epilogue: Any = None) -> Any:
        whole = lowerings[torch.ops.aten._int_mm.default](*operands)
        return lowerings[torch.ops.aten.cat.default]([lowerings[torch.ops.aten.unsqueeze.default](whole, 0)] * 2, 0)

    monkeypatch.setattr(templates, "product", slices)
    inputs = of_integers()
    with torch.no_grad(), gemmdb.inductor.force(SPLIT):
        found = torch.compile(torchao)(*inputs)
    wanted = 2 * torchao(*inputs).double()
    assert (found.double() - wanted).abs().max() <= 0.02 * wanted.abs().max()
    (product,) = gemmdb.inductor.stats()["products"]
    assert (product["config"], product["note"]) == (SPLIT.text, "")


SUM = Config.of("triton", "inductor_sum")
SUMMED = {
    "row": lambda x, w, q, s: x[:1] @ w.t(),
    "column": lambda x, w, q, s: w @ x[:1].t(),
    "relu": lambda x, w, q, s: torch.relu(x[:1] @ w.t()),
    "bias": lambda x, w, q, s: torch.addmm(s, x[:1], w.t()),
    "bias of a column": lambda x, w, q, s: torch.addmm(s[:, None], w, x[:1].t()),
    "int8": lambda x, w, q, s: linear(x[:1], q.to(x.dtype)),
    "int8, scale and bias": lambda x, w, q, s: linear(x[:1], q.to(x.dtype)) * s + s,
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SUMMED)
def test_multiply_and_sum_is_one_kernel_that_is_right(name: str, dtype: Any, reached: list[str]) -> None:
    """Inductor generates it here for the CPU."""
    given = (*(tensor.to(dtype) for tensor in (rand(4, 512), rand(96, 512))), ints(96, 512), rand(96).to(dtype))
    with torch.no_grad(), gemmdb.inductor.force(SUM):
        found, codes = utils.run_and_get_code(torch.compile(SUMMED[name], dynamic=False), *given)
    wanted = SUMMED[name](*(tensor.double() for tensor in given))
    assert (found.double() - wanted).abs().max() <= 0.01 * wanted.abs().max()
    (product,) = gemmdb.inductor.stats()["products"]
    assert (product["config"], product["note"]) == (SUM.text, "")
    assert gemmdb.inductor.stats()["errors"] == []
    assert codes[0].count("async_compile.cpp_pybinding(") == 1
    assert "extern_kernels." not in codes[0]


def test_multiply_and_sum_takes_no_symbolic_sizes(reached: list[str]) -> None:
    x, w = rand(1, 512), rand(96, 512)
    torch._dynamo.mark_dynamic(w, 0)
    assert "fixed sizes" in asked(SUMMED["row"], x, w, w, w, config=SUM)["note"]
