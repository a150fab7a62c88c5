"""Products of one row or one column on a GPU, in every config of Inductor: served what a table says, and torch's own
code where it says nothing."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmdb.inductor
from gemmdb import Config

pytestmark = pytest.mark.usefixtures("clean")
N, K = 1024, 512
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "coordinate descent": {"options": {"coordinate_descent_tuning": True}},
    "all directions": {
        "options": {
            "coordinate_descent_tuning": True, "coordinate_descent_check_all_directions": True,
            "epilogue_fusion": True, "force_fuse_int_mm_with_mul": True,
        }
    },
    "max-autotune": {"mode": "max-autotune-no-cudagraphs"},
}  # fmt: skip


def linear(x: Any, w: Any) -> Any:
    return torch.nn.functional.linear(x, w.to(x.dtype))


PROGRAMS: dict[str, Callable[..., Any]] = {
    "bf16": lambda x, w, q, s: torch.relu(linear(x, w)),
    "bf16 and a sum": lambda x, w, q, s: linear(x, w) + s,
    "int8": lambda x, w, q, s: linear(x, q),
    "int8 and a scale": lambda x, w, q, s: linear(x, q) * s,
    "int8, three dimensions": lambda x, w, q, s: torch.nn.functional.silu(linear(x.view(1, 1, K), q) * s),
    "column": lambda x, w, q, s: w @ x.t(),
    "heads": lambda x, w, q, s: torch.softmax(x.view(8, 1, 64) @ w.view(8, 1024, 64).transpose(1, 2), -1),
}


def inputs(kit: Any, rows: int = 1) -> tuple[Any, ...]:
    return kit.rand(rows, K), kit.rand(N, K) / 16, kit.ints(N, K), torch.rand(N, device="cuda").to(torch.bfloat16) / 64


def config_of(name: str, kit: Any) -> Config:
    if name == "heads":
        return Config.of("triton", "inductor_bmm", block_m=16, block_n=64, block_k=64, group_m=8, stages=3, warps=4)
    made: Config = kit.make("tile") if name == "column" else kit.make("gemv")
    return made


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_kernel_for_one_row_is_served_in_every_mode(kit: Any, name: str, mode: str) -> None:
    given, config = inputs(kit), config_of(name, kit)
    with torch.no_grad():
        found, _ = kit.compiled(PROGRAMS[name], *given, config=config, **MODES[mode])
    x, w, q, s = given
    kit.close(found, PROGRAMS[name](x.double(), w.double(), q, s.double()))
    assert kit.served() == [config.text]
    assert gemmdb.inductor.stats()["uncovered"] == {}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "heads"])
def test_multiply_and_sum_is_served_in_every_mode(kit: Any, name: str, mode: str) -> None:
    given, config = inputs(kit), Config.of("triton", "inductor_sum")
    with torch.no_grad():
        found, code = kit.compiled(PROGRAMS[name], *given, config=config, **MODES[mode])
    x, w, q, s = given
    kit.close(found, PROGRAMS[name](x.double(), w.double(), q, s.double()))
    assert kit.served() == [config.text]
    assert "extern_kernels." not in code.partition("async_compile.wait")[2]
    # Also with its scale, cast and activation. Where K is long for so few columns, Inductor cuts the sum in two.
    kernels = re.findall(r"@triton_heuristics\.(\w+)\(", code)
    assert len(kernels) in (1, 2)
    assert {*kernels} <= {"reduction", "persistent_reduction"}


@pytest.mark.parametrize("mode", ["default", "coordinate descent"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_missed_gemm_of_one_row_is_torchs_own_code(kit: Any, name: str, mode: str) -> None:
    from torch._inductor.utils import run_and_get_code

    def code() -> list[str]:
        kit.anew()
        with torch.no_grad():
            _, sources = run_and_get_code(torch.compile(PROGRAMS[name], **MODES[mode]), *given)
        return [line.partition("#")[0] for source in sources for line in source.splitlines()]

    given = inputs(kit)
    try:
        plain = code()
    except torch._inductor.exc.InductorError as error:
        # 2.11 in default mode: its pass for int8 weights drops a dimension of a product of three.
        pytest.skip(f"torch {torch.__version__} itself fails: {str(error).splitlines()[0]}")
    with gemmdb.inductor.force(lambda problem: None):
        assert code() == plain
    (entry,) = gemmdb.inductor.stats()["products"]
    assert ("torch decomposes it" in entry["note"]) == (mode != "default")


@pytest.mark.parametrize("rows", [1, 16])
def test_the_shipped_tables_answer_the_same_in_every_mode(kit: Any, rows: int) -> None:
    """The projections of a Llama-3-8B, in bf16 and with int8 weights as torchao writes them."""
    sizes = {"qkv": (6144, 4096), "out": (4096, 4096), "gate": (28672, 4096), "down": (4096, 14336)}
    gemmdb.inductor.enable(on_miss="aten")
    found: dict[str, Mapping[str, Any]] = {}
    for mode in MODES:
        kit.anew()
        for n, k in sizes.values():
            x, w, q = kit.rand(rows, k), kit.rand(n, k), kit.ints(n, k)
            s = torch.rand(n, device="cuda").to(torch.bfloat16)
            torch._dynamo.reset()  # Else the sizes of the second projection are symbols.
            with torch.no_grad():
                torch.compile(lambda x, w, q, s: (linear(x, w), linear(x, q) * s), **MODES[mode])(x, w, q, s)
        products = gemmdb.inductor.stats()["products"]
        found[mode] = {one["problem"]: (one["rung"], one["config"]) for one in products}
        assert gemmdb.inductor.stats()["errors"] == []
    assert len(found["default"]) == 2 * len(sizes)
    assert all(answers == found["default"] for answers in found.values())
