"""Products of batches in real compiles: which problem each is, what is lowered for it, and what stays as it was."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.devices import H200  # noqa: E402
from kit.inductor_ir import Operand  # noqa: E402
from torch._inductor import config as inductor_config  # noqa: E402
from torch._inductor.kernel import bmm  # noqa: E402

import gemmdb.inductor  # noqa: E402
from gemmdb import Config, Problem  # noqa: E402
from gemmdb.inductor import force  # noqa: E402
from gemmdb.inductor.adapter import inductor_templates  # noqa: E402
from gemmdb.inductor.lower import triton  # noqa: E402
from gemmdb.inductor.lower.inductor_templates import constants  # noqa: E402
from gemmdb.inductor.match import extract  # noqa: E402

TEMPLATE = Config.of("triton", "inductor_bmm", block_m=64, block_n=64, block_k=32, group_m=8, stages=3, warps=4)
NOTHING: Callable[[Problem], None] = lambda problem: None  # noqa: E731


def rand(*sizes: int) -> Any:
    return torch.randn(*sizes).bfloat16()


def heads(tokens: int = 5, count: int = 3, size: int = 16) -> Any:
    """The heads of an attention of one sequence: [heads, tokens, size], side by side in memory."""
    return rand(tokens, count, size).transpose(0, 1)


def test_every_name_that_the_template_reads_is_given(monkeypatch):
    """That differs from one torch to the other, and what is missing is found out by Triton alone, too late."""
    given: set[str] = set()

    def generate(**options: object) -> None:
        given.update(options)

    monkeypatch.setattr(bmm.bmm_template, "generate", generate)
    problem = Problem.gemm("bmm", batch=3, m=64, n=64, k=64)
    choice = inductor_templates.Choice("inductor_bmm", constants(TEMPLATE, problem), 4, 3)
    operands = [Operand((3, 64, 64))] * 2
    with pytest.raises(RuntimeError, match="cannot be generated"):
        inductor_templates.product(choice, operands, torch.bfloat16, None)
    source = Path(inspect.getfile(bmm)).with_name("templates").joinpath("triton_bmm.py.jinja").read_text()
    code = re.sub(r"#.*", "", source)
    read = set(re.findall(r"\b[A-Z][A-Z0-9_]{3,}\b", code)) - set(re.findall(r"\b([A-Z_]+) = ", code))
    assert "BLOCK_M" in read
    # Inductor gives the first itself; the second has a default.
    assert read - {"INDEX_DTYPE", "ASCENDING_K"} <= given


MODELS = {
    "dense": (torch.bmm, (rand(3, 5, 16), rand(3, 16, 8)), "a=bf16:row:8 b=bf16:row:8"),
    "weights as stored": (lambda a, w: a @ w.transpose(1, 2), (rand(3, 5, 16), rand(3, 8, 16)), "b=bf16:col:8"),
    "one weight": (lambda a, w: torch.bmm(a, w.expand(3, -1, -1)), (rand(3, 5, 16), rand(16, 8)),
                   "b=bf16:row:8:broadcast"),
    "heads": (lambda q, k: q @ k.transpose(1, 2), (heads(), heads(8)),
              "a=bf16:row-padded:8:interleaved b=bf16:col-padded:8:interleaved"),
    "a gap": (lambda a, b: torch.bmm(a[:, :5], b), (rand(3, 6, 16), rand(3, 16, 8)), "a=bf16:row:8"),
    "misaligned": (torch.bmm, (rand(3, 5, 15), rand(3, 15, 8)), "a=bf16:row:1 b=bf16:row:8"),
    "four dimensions": (torch.matmul, (rand(1, 3, 5, 16), rand(1, 3, 16, 8)), "a=bf16:row:8 b=bf16:row:8"),
    "an epilogue": (lambda a, b: torch.relu(a @ b), (rand(3, 5, 16), rand(3, 16, 8)), "fusion=pointwise"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_product_of_batches_is_a_problem_and_a_miss_is_atens(kit, name):
    model, inputs, described = MODELS[name]
    with torch.no_grad(), force(NOTHING):
        kit.close(kit.compiled(model, *inputs), model(*inputs))
    stats = gemmdb.inductor.stats()
    (text,) = kit.problems(stats)
    assert text.startswith(f"bmm batch=3 m=5 n=8 k={inputs[0].shape[-1]} ")
    assert f" {described} " in text
    assert (stats["hits"], stats["misses"], stats["uncovered"], stats["errors"]) == (0, 1, {}, [])


def test_a_table_answers_with_aten(kit, table):
    a, b = rand(3, 5, 16), rand(3, 16, 8)
    path = table({Problem.gemm("bmm", batch=3, m=5, n=8, k=16, layout="nn").text: kit.ATEN})
    gemmdb.inductor.enable(tables=[path], on_miss="error")
    with torch.no_grad():
        kit.close(kit.compiled(torch.bmm, a, b), torch.bmm(a, b))
        (entry,) = gemmdb.inductor.stats()["products"]
        assert (entry["rung"], entry["config"], entry["table"]) == ("exact", kit.ATEN.text, str(path))
        with pytest.raises(Exception, match="MissError: no table answers for bmm batch=4"):
            kit.compiled(torch.bmm, rand(4, 5, 16), rand(4, 16, 8))


def test_the_backward_is_two_more_products(kit):
    a, b = torch.randn(3, 5, 16, requires_grad=True), torch.randn(3, 16, 8, requires_grad=True)
    with force(NOTHING):
        kit.compiled(torch.bmm, a, b).sum().backward()
    grads = a.grad, b.grad
    a.grad = b.grad = None
    torch.bmm(a, b).sum().backward()
    for found, wanted in zip(grads, (a.grad, b.grad), strict=True):
        kit.close(found, wanted)
    assert {text.partition(" a=")[0] for text in kit.problems()} >= {"bmm batch=3 m=5 n=8 k=16"}
    assert gemmdb.inductor.stats()["uncovered"] == {}


def test_an_answer_benchmarks_nothing_under_max_autotune(kit):
    a, b = torch.randn(3, 32, 32), torch.randn(3, 32, 32)
    with torch.no_grad(), force(kit.ATEN), inductor_config.patch(max_autotune=True):
        kit.close(kit.compiled(torch.bmm, a, b), torch.bmm(a, b))
    stats = gemmdb.inductor.stats()
    assert (stats["benchmarked"], stats["hits"]) == (0, 1)


def square(x: Any) -> Any:
    return torch.bmm(x, x)


def test_scores_that_a_softmax_follows_are_multiplied_alone(kit):
    """What leads to a reduction of rows becomes part of its kernel."""
    q, k = torch.randn(3, 5, 16), torch.randn(3, 8, 16)
    with torch.no_grad(), force(NOTHING):
        kit.compiled(lambda q, k: torch.softmax(q @ k.transpose(1, 2) / 4, dim=-1), q, k)
    (text,) = kit.problems()
    assert " fusion=none " in text


OTHERS = {
    "a symbolic batch": (square, "batch", {"bmm": 1}),
    "baddbmm": (lambda x: torch.baddbmm(x, x, x), None, {"baddbmm": 1}),
    "integers": (lambda x: torch.bmm(x.int(), x.int()), None, None),
    "overlapping matrices": (lambda x: torch.bmm(x.as_strided((3, 8, 8), (8, 8, 1)), x), None, None),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_problem_is_counted_as_uncovered(kit, name):
    model, symbolic, wanted = OTHERS[name]
    x = torch.randn(3, 8, 8)
    if symbolic:
        torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad(), force(TEMPLATE):
        kit.close(kit.compiled(model, x), model(x))
    stats = gemmdb.inductor.stats()
    assert stats["products"] == []
    if wanted is None:
        (name,) = stats["uncovered"]
        assert name.startswith("aten.bmm.default: ")
    else:
        assert stats["uncovered"] == wanted
    assert stats["errors"] == []


def test_a_batch_of_one_stays_a_batch_on_a_cpu(kit):
    a, b = rand(1, 5, 16), rand(1, 16, 8)
    with torch.no_grad(), force(NOTHING):
        kit.close(kit.compiled(torch.bmm, a, b), torch.bmm(a, b))
    assert [text.partition(" m=")[0] for text in kit.problems()] == ["bmm batch=1"]


def test_a_symbolic_number_of_rows_has_a_range(kit):
    a, b = torch.randn(3, 5, 16), torch.randn(3, 16, 8)
    torch._dynamo.mark_dynamic(a, 1)
    with torch.no_grad(), force(NOTHING):
        kit.close(kit.compiled(torch.bmm, a, b), torch.bmm(a, b))
    (entry,) = gemmdb.inductor.stats()["products"]
    assert entry["ranges"] == {"m": [2, None]}


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Inductor's template would be generated from on an H200; what is served instead is ATen."""
    found: list[Any] = []

    def stop(choice: Any, operands: Any, out: Any, bias: Any) -> object:
        found.append((choice, [[int(size) for size in one.get_size()] for one in operands], out, bias))
        raise triton.Refused("that far")

    monkeypatch.setattr(extract, "device", lambda of: H200)
    monkeypatch.setattr(inductor_templates, "product", stop)
    return found


def test_a_gpu_is_handed_the_one_choice(kit, generated):
    for name in MODELS:
        model, inputs, _ = MODELS[name]
        gemmdb.inductor.reset_stats()
        with torch.no_grad(), force(TEMPLATE):
            kit.close(kit.compiled(model, *inputs), model(*inputs))
        stats = gemmdb.inductor.stats()
        (entry,) = stats["products"]
        assert (entry["note"], stats["errors"], stats["benchmarked"]) == ("that far", [], 0), name
    choice, sizes, out, bias = generated[0]
    assert (choice.kernel, choice.warps, choice.stages) == ("inductor_bmm", 4, 3)
    assert (sizes, out, bias) == ([[3, 5, 16], [3, 16, 8]], torch.bfloat16, None)
    assert choice.constants["EVEN_K"] is False
    assert (choice.constants["BLOCK_M"], choice.constants["ACC_TYPE"]) == (64, "tl.float32")
    assert len(generated) == len(MODELS)


def test_a_symbolic_size_is_not_for_the_template(kit, generated):
    a, b = torch.randn(3, 5, 16), torch.randn(3, 16, 8)
    torch._dynamo.mark_dynamic(a, 1)
    with torch.no_grad(), force(TEMPLATE):
        kit.close(kit.compiled(torch.bmm, a, b), torch.bmm(a, b))
    (entry,) = gemmdb.inductor.stats()["products"]
    assert "fixed sizes" in entry["note"]
    assert generated == []
