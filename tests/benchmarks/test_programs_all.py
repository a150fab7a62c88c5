"""Tiny versions of the programs of transformers, torchao, timm and diffusers, with gemmdb, on a CPU.

`make programs` installs the packages. Without them these tests are skipped.
"""

from __future__ import annotations

import pytest

from benchmarks.programs.packages import missing
from benchmarks.programs.suite import suite

NAMES = [name for name, program in suite().items() if program.needs]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_version_is_right_with_gemmdb(name: str) -> None:
    pytest.importorskip("torch")
    from kit.translation_unit import compiled_at_once

    from benchmarks.programs.check import checked

    program = suite()[name]
    if why := missing(program.needs) or program.gpu_only:
        pytest.skip(why)
    with compiled_at_once():
        found = checked(program, "cpu")
    assert "gemmdb" in found, found


def test_filling_the_cache_of_a_decode_step_computes_no_logits() -> None:
    """Logits of all positions of 64 sequences of a Llama are 31 GiB in int32, four times the weights."""
    torch = pytest.importorskip("torch")
    if why := missing(("transformers",)):  # It also lets transformers meet a torchvision of another torch.
        pytest.skip(why)
    from benchmarks.programs.decoders import LLAMA
    from benchmarks.programs.decoding import Decode

    model, seen = LLAMA.made("tiny", "cpu"), []
    model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(tuple(output.shape)))
    decode = Decode(model, rows=2, context=8)
    assert seen == []
    ids = torch.tensor([[5], [7]])
    logits = decode(ids)
    assert seen == [(2, 1, LLAMA.tiny["vocab_size"])]
    with torch.no_grad():  # The cache holds the first seven tokens: the logits are those of the whole sequence.
        filled = model(torch.cat((decode.prompt, ids), dim=1)).logits[:, -1:]
    assert torch.nn.functional.cosine_similarity(logits.flatten().float(), filled.flatten().float(), dim=0) > 0.999


@pytest.mark.parametrize("name", ["torchao-int8wo-decode-1", "torchao-int8wo-decode-4"])
def test_a_program_of_torchao_says_whether_it_tunes(name: str) -> None:
    pytest.importorskip("torch")
    from torch._inductor import config

    program = suite()[name]
    if why := missing(program.needs):
        pytest.skip(why)
    flags = ("coordinate_descent_tuning", "coordinate_descent_check_all_directions")
    with config.patch(dict.fromkeys(flags, False)):
        program.make("tiny", "cpu")
        assert [getattr(config, flag) for flag in flags] == [program.tuned] * 2
