"""The layers of experts among the programs: what they compute, and their tiny version with gemmdb."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from benchmarks.programs import expert_layer, expert_layers
from benchmarks.programs.suite import suite


def test_a_layer_adds_the_experts_of_each_token() -> None:
    sizes, tokens = expert_layers.TINY, 9
    run = expert_layer.built(sizes, tokens, "cpu").step(lambda layer: layer)
    layer, x, shares, chosen = (cell.cell_contents for cell in sorted_cells(run))
    wanted = torch.zeros(tokens, sizes.hidden)
    for token in range(tokens):
        for share, expert in zip(shares[token], chosen[token], strict=True):
            gate, up = (layer.up[expert].float() @ x[token].float()).chunk(2)
            wanted[token] += share.float() * (layer.down[expert].float() @ (torch.nn.functional.silu(gate) * up))
    torch.testing.assert_close(run().float(), wanted, atol=0.02, rtol=0.05)


def sorted_cells(run: object) -> list[object]:
    """What the step reads: the layer, the tokens, the shares and the chosen experts."""
    names = dict(zip(run.__code__.co_freevars, run.__closure__, strict=True))
    return [names[name] for name in ("run", "x", "shares", "chosen")]


@pytest.mark.slow
def test_its_tiny_version_is_right_with_gemmdb() -> None:
    from benchmarks.programs.check import checked

    found = checked(suite()["experts-qwen3-moe-16"], "cpu")
    assert found["rungs"] == {"aten": 2}
