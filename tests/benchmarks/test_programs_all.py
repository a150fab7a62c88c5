"""Tiny versions of the programs of transformers, torchao, timm and diffusers, with gemmdb, on a CPU.

`make packages` installs the packages. Without them these tests are skipped.
"""

from __future__ import annotations

import pytest

from benchmarks.programs.packages import missing
from benchmarks.programs.suite import suite

pytestmark = pytest.mark.slow  # Their packages take a minute to install, and some seconds to import.

ALIKE = {
    "torchao-int8wo-decode-16": "torchao-int8wo-decode-4", "torchao-fp8wo-decode-16": "torchao-fp8wo-decode-4",
    "llama-decode-32": "llama-decode-16", "llama-decode-64": "llama-decode-16", "llama-decode-128": "llama-decode-16",
    "llama-prefill-1x2048": "llama-prefill-1x1024",
}  # fmt: skip
"""Programs whose tiny version, of at most two rows, is that of another program: it is compiled once."""
NAMES = [name for name, program in suite().items() if program.needs and name not in ALIKE]


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


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_left_out_computes_what_another_computes(name: str) -> None:
    torch = pytest.importorskip("torch")
    from benchmarks.programs.work import answered

    both = [suite()[one] for one in (name, ALIKE[name])]
    if why := missing(both[0].needs):
        pytest.skip(why)
    assert len({(one.kind, one.tuned, one.tolerance, str(one.options)) for one in both}) == 1
    left_out, other = (answered(program.make("tiny", "cpu")) for program in both)
    torch.testing.assert_close(left_out, other, rtol=0, atol=0)


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
