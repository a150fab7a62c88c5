"""Inductor's own templates for batches and fp8: every name that they read is given, and a GPU is handed one choice."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit import program_batch
from kit.devices import H200
from kit.gemm_programs import BATCHED, BF16, BY_ROWS, PRODUCTS, ROWS, SCALED, A, W, fp8, number, scaled
from kit.inductor_ir import Operand
from torch._inductor import config as inductor_config
from torch._inductor import graph, utils
from torch._inductor.kernel import bmm, mm

import gemmdb.inductor
from gemmdb import Config, Problem
from gemmdb.inductor import force
from gemmdb.inductor.lower import triton
from gemmdb.inductor.lower.adapter import inductor_templates, templates
from gemmdb.inductor.lower.inductor_templates import constants
from gemmdb.inductor.match import extract
from gemmdb.inductor.observe.journal import JOURNAL

VALUES = {"block_m": 64, "block_n": 64, "block_k": 64, "group_m": 8, "stages": 3, "warps": 4}
TEMPLATE = Config.of("triton", "inductor_mm", **VALUES)
MAPPED = Config.of("triton", "inductor_scaled_tma", **VALUES)
BATCH = Config.of("triton", "inductor_bmm", **{**VALUES, "block_k": 32})


@dataclass(frozen=True)
class Source:
    """A template of Inductor: its module and name there, its file, and the names it reads that Inductor gives itself or
    that have a default."""

    module: Any
    name: str
    file: str
    others: frozenset[str] = frozenset({"INDEX_DTYPE"})


SOURCES = {
    BATCH: Source(bmm, "bmm_template", "triton_bmm", frozenset({"INDEX_DTYPE", "ASCENDING_K"})),
    TEMPLATE: Source(mm, "mm_template", "triton_mm"),
    MAPPED: Source(mm, "scaled_mm_device_tma_epilogue_scaling_template", "triton_epilogue_scaled_mm"),
}


@pytest.mark.parametrize("config", SOURCES, ids=lambda config: config.kernel)
def test_every_name_that_a_template_reads_is_given(monkeypatch, config):
    """That differs from one torch to the other, and what is missing is found out by Triton alone, too late."""
    given: dict[str, Any] = {}
    source = SOURCES[config]
    monkeypatch.setattr(getattr(source.module, source.name), "generate", lambda **options: given.update(options))
    monkeypatch.setattr(inductor_templates, "get_tma_workspace_arg", lambda **options: "workspace")
    monkeypatch.setattr(inductor_templates, "get_num_sms", lambda: 132)
    if config == BATCH:
        problem = Problem.gemm("bmm", batch=3, m=64, n=64, k=64)
        lower, operands, others = inductor_templates.gemm, [Operand((3, 64, 64))] * 2, None
    else:
        problem = Problem.gemm("scaled_mm", m=64, n=64, k=64, scales="row", fast_accum=True)
        lower = inductor_templates.scaled_gemm
        operands = others = [Operand((64, 64))] * 2
    choice = inductor_templates.Choice(config.kernel, constants(config, problem), 4, 3)
    with pytest.raises(RuntimeError, match="cannot be generated"):
        lower(choice, operands, BF16, others)
    text = Path(inspect.getfile(source.module)).with_name("templates").joinpath(f"{source.file}.py.jinja").read_text()
    code = re.sub(r"#.*", "", text if config == BATCH else text.partition("\n@triton.jit")[0])
    read = set(re.findall(r"\b[A-Z][A-Z0-9_]{3,}\b", code)) - set(re.findall(r"\b([A-Z_]+) = ", code))
    assert "BLOCK_M" in read
    assert read - source.others <= set(given)
    assert len(given["input_nodes"]) == (2 if config == BATCH else 4)
    assert ("workspace_arg" in given) == (config == MAPPED)
    assert given.get("suffix_args") == (2 if config == TEMPLATE else None)
    if config != BATCH:
        assert (given["USE_FAST_ACCUM"], given["SCALE_RECIPE_A"], given["SCALE_RECIPE_B"]) == (True, 1, 1)


@dataclass(frozen=True)
class Generated:
    """What a template would be generated from: the choice, the dtype of the output, and sizes."""

    choice: Any
    out: Any
    operands: list[list[int]]
    rest: list[list[int]]


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[Generated]:
    """What Inductor's templates would be generated from on an H200; what is served instead is ATen."""
    found: list[Generated] = []

    def sizes(nodes: Any) -> list[list[int]]:
        return [[int(size) for size in one.get_size()] for one in nodes or ()]

    def stop(choice: Any, operands: Any, out: Any, rest: Any) -> object:
        found.append(Generated(choice, out, sizes(operands), sizes(rest)))
        raise triton.Refused("that far")

    # Inductor has to think of inputs on a CPU as it does of those on a GPU, of which it says where they begin.
    monkeypatch.setattr(graph, "should_assume_input_aligned", utils.tensor_is_aligned)
    monkeypatch.setattr(extract, "device", lambda of: H200)
    for name in ("gemm", "scaled_gemm"):
        monkeypatch.setattr(inductor_templates, name, stop)
    monkeypatch.setattr(inductor_templates, "get_num_sms", lambda: 132)
    monkeypatch.setattr(templates, "tensor_map_rejection", lambda: None)
    return found


def rest(config: Config, name: str) -> list[list[int]]:
    """The sizes of the scales, and of the bias if there is one, as the template takes them."""
    product = PRODUCTS[name]
    m, n, _ = product.sizes
    if config == BATCH:
        return []
    if config == TEMPLATE:
        # All of the epilogue is seen as the output is.
        return [[m, n]] * (3 if name == "a bias" else 2)
    first, second = product.inputs[2:4]
    return [list(first.shape), list((second.t() if name == "scales of a transposed weight" else second).shape)]


@pytest.mark.parametrize("config", [BATCH, TEMPLATE, MAPPED], ids=lambda config: config.kernel)
def test_a_gpu_is_handed_the_one_choice(generated, config):
    names = list(BATCHED) if config == BATCH else [*SCALED, *([] if ROWS.args[0] else BY_ROWS)]
    with torch.no_grad(), force(config):
        program_batch.compiled([PRODUCTS[name].model for name in names], [PRODUCTS[name].inputs for name in names])
    stats, handed = gemmdb.inductor.stats(), iter(generated)
    assert (stats["errors"], stats["benchmarked"]) == ([], 0)
    for event, name in zip(JOURNAL.events, names, strict=True):
        if config == MAPPED and name in ("a bias", "one row"):
            assert "takes no bias" in event.note or "a size of 1" in event.note
            continue
        assert event.note == "that far", name
        found = next(handed)
        assert (found.choice.kernel, found.choice.warps, found.choice.stages) == (config.kernel, 4, 3)
        chosen = found.choice.constants
        assert (chosen["EVEN_K"], chosen["BLOCK_M"], chosen["ACC_TYPE"]) == (False, 64, "tl.float32")
        wanted = PRODUCTS[name].out, PRODUCTS[name].operands, rest(config, name)
        assert (found.out, found.operands, found.rest) == wanted, name
    assert next(handed, None) is None


@pytest.mark.parametrize("config", [BATCH, TEMPLATE], ids=lambda config: config.kernel)
def test_a_symbolic_size_is_not_for_a_template(kit, generated, config):
    if config == BATCH:
        model, inputs = torch.bmm, (torch.randn(3, 5, 16), torch.randn(3, 16, 8))
        torch._dynamo.mark_dynamic(inputs[0], 1)
    else:
        model, inputs = scaled, (fp8(8, 32), W, number(), number())
        torch._dynamo.mark_dynamic(inputs[0], 0)
    with torch.no_grad(), force(config):
        kit.close(kit.compiled(model, *inputs), model(*inputs))
    (entry,) = gemmdb.inductor.stats()["products"]
    assert "fixed sizes" in entry["note"]
    assert generated == []


@ROWS
def test_a_constant_scale_that_begins_anywhere_is_refused(kit, generated):
    """Inductor takes it for granted that it begins at a multiple of 16 bytes, and tells Triton so."""

    class Frozen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.rand(20)[1:17].view(1, 16), requires_grad=False)

        def forward(self, a, w, first):
            return scaled(a, w, first, self.scale)

    model, inputs = Frozen().eval(), (A, W, torch.rand(8, 1))
    with torch.no_grad(), force(TEMPLATE), inductor_config.patch(freezing=True):
        kit.close(kit.compiled(model, *inputs), model(*inputs))
    (entry,) = gemmdb.inductor.stats()["products"]
    assert entry["note"] == "a constant is not aligned to 16 bytes"
    assert generated == []
