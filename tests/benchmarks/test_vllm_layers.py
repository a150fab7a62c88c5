"""What `benchmarks.torch vllm-layers` says of its lines; it runs on a GPU with vLLM."""

import pytest

torch = pytest.importorskip("torch")

from benchmarks.programs.expert_layer import experts
from benchmarks.torch.vllm_layers import summary, told
from gemmdb.generators.vllm import operands
from gemmdb.generators.vllm.layers import Experts


def line(tokens, **us):
    return {"name": "mixtral", "tokens": tokens, "us": {way: [one - 1, one, one + 1] for way, one in us.items()}}


def test_a_line_names_its_medians_and_how_fast_gemmdb_is():
    assert told(line(16, default=200.0, gemmdb=100.0, vllm=90.0)) == (
        "mixtral, 16 tokens: default 200.0, gemmdb 100.0, vllm 90.0 us; gemmdb 0.900x of vllm"
    )


def test_the_means_are_over_the_layers_that_have_a_way():
    lines = [
        line(1, default=100.0, gemmdb=50.0, vllm=50.0, **{"vllm-file": 40.0}),
        line(16, default=200.0, gemmdb=25.0, vllm=50.0),
    ]
    text = "gemmdb, geometric mean (layers): 4.000x of default (2), 1.414x of vllm (2), 0.800x of vllm-file (1)"
    assert summary(lines) == text
    assert summary([]).endswith("nothing measured")


def test_the_layer_computes_what_vllms_reference_does():
    layer, device = Experts(4, 2, 64, 32), torch.device("cpu")
    weights = [operands.weight(one, False, device) for one in layer.weights]
    x, (shares, chosen) = operands.activations(5, 64, device)[0], operands.routings(layer, 5, device)[0]
    found = experts(x, shares.bfloat16(), chosen.long(), *(one.values for one in weights))
    assert operands.error(found, operands.exact_experts(x, *weights, (shares, chosen))) < 0.02
