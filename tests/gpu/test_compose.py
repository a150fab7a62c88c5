"""gemmdb beside everything else that a compile on a GPU may use: graphs, autocast, checkpoints, caches, processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gemmdb.inductor
from gemmdb import Config

pytestmark = pytest.mark.usefixtures("clean")
F = torch.nn.functional
BF16 = torch.bfloat16
TILE = Config.of(
    "triton", "tile", block_m=32, block_n=64, block_k=64, group_m=8, split_k=1, reduce="none", swap=0, load="pointer",
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
KERNELS = [TILE, TMA, PERSISTENT, INDUCTOR_TMA, CUTLASS]
ALGORITHM = Config.of(
    "cublaslt", "matmul", algo=66, tile=20, stages=35, split_k=1, reduction=0, swizzle=0, custom=1, inner=0, cluster=2
)


class Net(torch.nn.Module):
    """Two linears and what is between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(256, 512, device="cuda", dtype=BF16)
        self.down = torch.nn.Linear(512, 256, bias=False, device="cuda", dtype=BF16)

    def forward(self, x: Any) -> Any:
        return self.down(F.gelu(self.up(x))) + x


def all_ours(number: int) -> None:
    stats = gemmdb.inductor.stats()
    assert [entry["config"] for entry in stats["products"] for _ in range(entry["count"])] == [TILE.text] * number
    assert stats["benchmarked"] == 0
    assert stats["errors"] == []


def test_reduce_overhead_replays_graphs(kit: Any) -> None:
    model = Net()
    with torch.no_grad(), gemmdb.inductor.force(TILE):
        run = torch.compile(model, mode="reduce-overhead")
        for _ in range(4):
            x = kit.rand(48, 256)
            kit.close(run(x).clone(), model(x))
    all_ours(2)


def test_training_under_autocast_with_checkpoints(kit: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512, device="cuda"), torch.nn.ReLU(), torch.nn.Linear(512, 256, device="cuda")
    )
    x = torch.randn(64, 256, device="cuda", requires_grad=True)

    def step(x: Any) -> Any:
        with torch.autocast("cuda", dtype=BF16):
            return checkpoint(model, x, use_reentrant=False).float().square().mean()

    step(x).backward()
    wanted = [x.grad.clone(), *(p.grad.clone() for p in model.parameters())]
    x.grad = None
    model.zero_grad()
    with gemmdb.inductor.force(TILE):
        torch.compile(step)(x).backward()
    stats = gemmdb.inductor.stats()
    assert {entry["config"] for entry in stats["products"]} == {TILE.text}
    assert stats["errors"] == []
    for one, other in zip([x.grad, *(p.grad for p in model.parameters())], wanted, strict=True):
        kit.close(one, other, 0.05)


def test_freezing(kit: Any) -> None:
    import torch._inductor.config as config

    model, x = Net().eval(), kit.rand(48, 256)
    with torch.no_grad(), config.patch(freezing=True), gemmdb.inductor.force(TILE):
        kit.close(torch.compile(model)(x), model(x))
    all_ours(2)


def test_a_users_own_pass_still_runs(kit: Any) -> None:
    import torch._inductor.config as config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    seen = []

    class Look(CustomGraphPass):
        def __call__(self, graph: Any) -> None:
            seen.append(len(graph.nodes))

        def uuid(self) -> str:
            return "look"

    model, x = Net(), kit.rand(48, 256)
    with torch.no_grad(), config.patch(post_grad_custom_post_pass=Look()), gemmdb.inductor.force(TILE):
        kit.close(torch.compile(model)(x), model(x))
    assert seen
    all_ours(2)


def compilable(config: Config) -> None:
    """Skip the test where `config` needs a compiler that is not there, or another GPU."""
    from gemmdb.inductor.lower.adapter import cutlass

    if config.backend == "cutlass" and cutlass.compiler_rejection():
        pytest.skip(str(cutlass.compiler_rejection()))
    if config != TILE and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("no tensor copy engine")


def inputs(kit: Any) -> list[tuple[str, Any]]:
    """Activations [48, 256] in every place and with every stride, and what of it keeps tensor maps from reading it."""
    storage = kit.rand(64 * 264 + 8)
    return [
        ("", storage[: 48 * 256].view(48, 256)),
        ("16 bytes", storage[1 : 1 + 48 * 256].view(48, 256)),
        ("16 bytes", storage[4 : 4 + 48 * 256].view(48, 256)),
        ("", storage[8 : 8 + 48 * 256].view(48, 256)),
        ("16 bytes", storage[: 48 * 264].view(48, 264)[:, 3:259]),
        ("16 bytes", storage[: 48 * 259].view(48, 259)[:, :256]),
        ("", storage[: 48 * 264].view(48, 264)[:, 8:]),
        ("", storage[: 48 * 256].view(256, 48).t()),
    ]


@pytest.mark.parametrize("config", KERNELS, ids=lambda config: config.name + config.values.get("load", ""))
@pytest.mark.parametrize("once", [True, False], ids=["one-function", "compiled-for-each"])
def test_a_misaligned_or_restrided_input_is_right(kit: Any, config: Config, once: bool) -> None:
    """Inputs that are given to one function, compiled anew where strides differ but not where alignment does; and each
    as the first that a function sees."""
    compilable(config)
    w = kit.rand(512, 256) / 16
    with gemmdb.inductor.force(config):
        run = torch.compile(lambda x: x @ w.t(), dynamic=False)
        for reason, x in inputs(kit):
            if not once:
                kit.anew()
            kit.close(run(x), x.double() @ w.double().t())
            products = gemmdb.inductor.stats()["products"]
            if not once and config != TILE and reason:
                assert [reason in product["note"] for product in products] == [True]
            elif not once:
                assert [(product["config"], product["note"]) for product in products] == [(config.text, "")]
    assert gemmdb.inductor.stats()["errors"] == []


@pytest.mark.parametrize("config", KERNELS, ids=lambda config: config.name + config.values.get("load", ""))
def test_a_misaligned_weight_is_right(kit: Any, config: Config) -> None:
    """Also as a constant of the graph, which Inductor takes to be aligned: it tells Triton so."""
    import torch._inductor.config as inductor

    compilable(config)
    x = kit.rand(48, 256)
    for freezing in (False, True):
        kit.anew()
        model = torch.nn.Linear(256, 512, bias=False, device="cuda", dtype=BF16).eval()
        model.weight = torch.nn.Parameter((kit.rand(512 * 256 + 1) / 16)[1:].view(512, 256))
        with torch.no_grad(), inductor.patch(freezing=freezing), gemmdb.inductor.force(config):
            kit.close(torch.compile(model)(x), model(x))
        (product,) = gemmdb.inductor.stats()["products"]
        assert ("16 bytes" in product["note"]) == (freezing or config != TILE)


def test_the_kernel_is_looked_up_for_the_alignment_that_an_input_has(kit: Any) -> None:
    w, storage = kit.rand(512, 256) / 16, kit.rand(48 * 256 + 8)
    with gemmdb.inductor.force(lambda problem: PERSISTENT if problem.a.layout.align == 8 else TILE, "by alignment"):
        for offset, config in ((1, TILE), (8, PERSISTENT)):
            kit.anew()
            x = storage[offset : offset + 48 * 256].view(48, 256)
            kit.close(torch.compile(lambda x: x @ w.t(), dynamic=False)(x), x.double() @ w.double().t())
            assert kit.served() == [config.text]


def test_a_symbolic_stride_has_no_tensor_map(kit: Any) -> None:
    """From the second width on the stride is a symbol, and the third is no multiple of 16 bytes."""
    w = kit.rand(512, 256) / 16
    for config in (TMA, PERSISTENT):
        kit.anew()
        with gemmdb.inductor.force(config):
            run = torch.compile(lambda x: x @ w.t())
            for width in (264, 272, 259, 512):
                x = kit.rand(48, width)[:, :256]
                kit.close(run(x), x.double() @ w.double().t())


@pytest.mark.parametrize("bias", [False, True])
def test_a_misaligned_scale_or_column_of_biases_is_right(kit: Any, bias: bool) -> None:
    """CUTLASS wants every pointer aligned, and no key says how a scale is."""
    compilable(CUTLASS)
    if bias:
        a, b, moved = kit.rand(64, 512), kit.rand(512, 1024) / 16, kit.rand(65)[1:, None]
        model, inputs = torch.addmm, (moved, a, b)
        wanted = moved.double() + a.double() @ b.double()
    else:
        a, b, moved = kit.ints(64, 512), kit.ints(1024, 512), (torch.rand(1025, device="cuda") / 64)[1:]
        model, inputs = (lambda a, b, s: (torch._int_mm(a, b.t()) * s).to(BF16)), (a, b, moved)
        wanted = a.double() @ b.double().t() * moved.double()
    with gemmdb.inductor.force(CUTLASS):
        kit.close(torch.compile(model)(*inputs), wanted)
    (product,) = gemmdb.inductor.stats()["products"]
    assert "16 bytes" in product["note"]
    assert gemmdb.inductor.stats()["errors"] == []


CACHED = """
import json, sys, torch
import gemmdb.inductor
from gemmdb import Config
torch.manual_seed(0)
w = torch.randn(512, 256, device="cuda", dtype=torch.bfloat16) / 16
x = torch.randn(48, 256, device="cuda", dtype=torch.bfloat16)
from torch._dynamo.utils import counters
with gemmdb.inductor.force(Config.parse(sys.argv[1])):
    found = torch.compile(lambda x, w: torch.relu(x @ w.t()))(x, w)
wanted = torch.relu(x.double() @ w.double().t())
error = float((found.double() - wanted).abs().max() / wanted.abs().max())
stats = gemmdb.inductor.stats()
print(json.dumps({"hit": counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"],
                  "configs": [p["config"] for p in stats["products"]], "error": error,
                  "benchmarked": stats["benchmarked"]}))
"""


def test_caches_hit_across_processes_and_know_the_config(tmp_path: Path) -> None:
    other = Config.of("triton", "tile", **{**TILE.values, "block_k": 32})
    environ = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    replies = []
    for config in (TILE, TILE, other):
        done = subprocess.run(
            [sys.executable, "-c", CACHED, config.text], env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        replies.append(json.loads(done.stdout.splitlines()[-1]))
    assert [bool(reply["hit"]) for reply in replies] == [False, True, False]
    assert [reply["configs"] for reply in replies] == [[TILE.text], [TILE.text], [other.text]]
    assert all(reply["error"] < 0.02 and reply["benchmarked"] == 0 for reply in replies)


@pytest.mark.parametrize("op", ["mm", "addmm"])
@pytest.mark.parametrize("config", [*KERNELS, ALGORITHM], ids=lambda config: config.name)
def test_a_padded_weight_is_read_in_the_order_that_inductor_gives_it(kit: Any, config: Config, op: str) -> None:
    """The graph has it by rows, as default mode pads the weight of a classifier with 30,522 outputs. Inductor stores it
    by columns, as it reads it."""
    x, w, b = kit.rand(64, 256), kit.rand(506, 256), kit.rand(512)

    def model(x: Any, w: Any, b: Any) -> Any:
        padded = torch.constant_pad_nd(w.t(), [0, 6])
        return torch.addmm(b, x, padded) if op == "addmm" else torch.mm(x, padded)

    with torch.no_grad(), gemmdb.inductor.force(config):
        found = torch.compile(model)(x, w, b)
    kit.close(found, model(x, w, b))
    (product,) = gemmdb.inductor.stats()["products"]
    assert product["config"] == config.text, product["note"]
    assert " b=bf16:col:8 " in product["problem"]
