"""1 x 1 convolutions of images that are stored channels last: GEMMs, where Inductor makes them that."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kit.gpu import make

import gemmdb.inductor

pytestmark = pytest.mark.usefixtures("clean")
CONFIGS = [make("tile", block_m=64), make("tile", split_k=2, reduce="fixup"), make("narrow")]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.text)
@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_takes_our_kernels(kit: Any, bias: bool, config: Any) -> None:
    import torch._inductor.config as inductor

    model = torch.nn.Conv2d(256, 64, 1, bias=bias).to("cuda", torch.bfloat16, memory_format=torch.channels_last).eval()
    x = kit.rand(2, 256, 4, 5).to(memory_format=torch.channels_last)
    with inductor.patch(conv_1x1_as_mm=True), torch.no_grad():
        found, code = kit.compiled(model, x, config=config)
        kit.close(found, model.double()(x.double()))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert kit.served() == [config.text]
    assert "extern_kernels.convolution(" not in code
    assert gemmdb.inductor.stats()["uncovered"] == {}


def test_it_is_counted_where_it_stays_a_convolution(kit: Any) -> None:
    model = torch.nn.Conv2d(64, 64, 1).cuda().eval()
    with torch.no_grad():
        _, code = kit.compiled(model, kit.rand(2, 64, 4, 5).float(), config=make("tile"))
    assert "extern_kernels.convolution(" in code
    assert gemmdb.inductor.stats()["uncovered"] == {"conv1x1": 1}
