"""The decoder that is measured: what a step writes to its cache, and what Inductor makes of that."""

import copy
import math
import re

import pytest

torch = pytest.importorskip("torch")

from torch._inductor.utils import run_and_get_code

from benchmarks.torch import llama

SHAPE = llama.Shape(hidden=64, heads=4, key_heads=2, head=16, feed=128, vocabulary=96, layers=2)
RUN = llama.Run(rows=2, context=512, weights="bf16", device="cpu")


@pytest.fixture
def model():
    torch.manual_seed(0)
    with torch.no_grad():
        yield llama.Decoder(SHAPE, RUN).eval()


def caches(model):
    return [cache for block in model.blocks for cache in (block.keys, block.values)]


def test_a_step_of_the_last_token_continues_a_prefill(model):
    x, angles, places = llama.inputs(SHAPE, RUN, RUN.context)
    wanted = model(x, angles, places)
    filled = copy.deepcopy(caches(model))
    for cache in caches(model):
        cache[:, :, -1] = 0
    found = model(x[:, -1:], angles[-1:], places[-1:])
    assert (found - wanted).norm() <= 0.02 * wanted.norm()
    # A row alone is summed in another order than among others.
    assert all(torch.allclose(now, then, atol=0.1) for now, then in zip(caches(model), filled, strict=True))


def test_a_step_writes_its_place_alone(model):
    x, angles, places = llama.inputs(SHAPE, RUN, 1)
    before = copy.deepcopy(caches(model))
    model(x, angles, places)
    for now, then in zip(caches(model), before, strict=True):
        changed = (now != then).flatten(0, 1).any(dim=-1)
        assert changed.nonzero()[:, 1].tolist() == RUN.rows * SHAPE.key_heads * [RUN.context - 1]


def test_inductor_writes_the_new_tokens_in_place(model):
    """Two copies of the whole cache per layer took half the time of a step of 16 rows."""
    inputs = llama.inputs(SHAPE, RUN, 1)
    block = model.blocks[0]
    eager = copy.deepcopy(block)
    found, (code,) = run_and_get_code(torch.compile(block), *inputs)
    assert (found - eager(*inputs)).norm() <= 0.02 * found.norm()
    assert torch.allclose(block.keys, eager.keys, atol=0.1)
    assert torch.equal(block.values[:, :, :-1], eager.values[:, :, :-1])
    buffers = re.findall(r"empty_strided_cpu\(\((.*?)\)", code)
    largest = max(math.prod(map(int, re.findall(r"\d+", sizes))) for sizes in buffers)
    assert 0 < largest < block.keys.numel()


def test_a_step_reads_its_weights_and_its_cache(model):
    cached = sum(cache.nbytes for cache in caches(model))
    assert cached == 2 * 2 * RUN.rows * SHAPE.layers * SHAPE.key_heads * RUN.context * SHAPE.head
    weights = sum(buffer.nbytes for name, buffer in model.named_buffers() if "weight" in name)
    assert llama.read_bytes(model) == cached + weights
