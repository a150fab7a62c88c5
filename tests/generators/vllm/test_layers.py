"""What `gemmdb vllm` tunes: the file of a layer, its rows per expert, and sizes that vLLM's kernels do not take."""

import pytest

from gemmdb.errors import InputError
from gemmdb.generators.vllm.layers import Experts, Linear
from gemmdb.generators.vllm_files import Name


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (Experts(8, 2, 4096, 7168), "E=8,N=7168,device_name=NVIDIA_H200.json"),
        (
            Experts(256, 8, 7168, 256, fp8=True),
            "E=256,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json",
        ),
        (Linear(7168, 2048), "N=7168,K=2048,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"),
    ],
)
def test_the_file_of_a_layer(layer, name):
    assert layer.name("NVIDIA H200").text == name
    assert Name.parse(name) == layer.name("NVIDIA_H200")


def test_an_expert_has_its_share_of_the_tokens_and_at_least_one():
    layer = Experts(128, 8, 2048, 768)
    assert [layer.rows(m) for m in (1, 16, 4096)] == [1, 1, 256]
    assert Linear(256, 256).rows(48) == 48


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Experts(8, 9, 4096, 7168), "--top-k 9: there are 8 experts"),
        (lambda: Experts(8, 0, 4096, 7168), "--top-k 0: a size from 1"),
        (lambda: Experts(8, 2, 4096, 2**21), "--intermediate 2097152: a size"),
        (lambda: Experts(8, 2, 4000, 7168, fp8=True), "--hidden 4000: fp8 needs a multiple of 128"),
        (lambda: Linear(7168, 100), "--k 100: block scales"),
    ],
)
def test_sizes_that_the_kernels_do_not_take(make, said):
    with pytest.raises(InputError, match=said):
        make()
