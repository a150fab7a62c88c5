"""Calls of serving engines' operators on a GPU: replaced by a kernel that is timed against them, and right.

Where vLLM or SGLang is installed, their own operators run; elsewhere plain ones with the same declarations."""

import importlib
import importlib.util
from contextlib import ExitStack

import pytest

torch = pytest.importorskip("torch")

from kit import engine_ops as engine
from kit.gpu import make, rand

import gemmdb.inductor
from gemmdb import Policy
from gemmdb.hit import Hit
from gemmdb.inductor.decide.session import Mode
from gemmdb.inductor.entry import active
from gemmdb.inductor.entry.table_session import TableSession
from gemmdb.settings import Settings

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
pytestmark = [pytest.mark.usefixtures("clean"), pytest.mark.skipif(not HOPPER, reason="needs Hopper or later")]
PATIENT = Policy(on_miss="aten", confirm=True, confirm_s=60.0, horizontal=False)
NARROW = make("narrow", block_k=128)
NAMES = (engine.CUTLASS, engine.SGL_FP8)
FORMS = [make("int4"), make("int4", scaled="sums"), make("int4_skinny"), make("int4_skinny", lean=1, block_n=32)]


class Guessing(TableSession):
    """Guesses one config, in an eighth of ATen's time."""

    def __init__(self):
        super().__init__(PATIENT.resolved(Settings.read()))
        self.identity = None

    def _find(self, query, mode):
        return Hit("near", NARROW, 12.5, 8.0, "guess") if mode is Mode.POLICY else None


def operands():
    a, w = rand(16, 2048).to(engine.E4M3), rand(1024, 2048).to(engine.E4M3)
    return a, w, torch.rand(16, 1, device="cuda"), torch.rand(1024, 1, device="cuda")


def vllm(a, w, s, t):
    return engine.scaled_mm(a, w.t(), s, t).relu()


def sgl(a, w, s, t):
    return torch.ops.sgl_kernel.fp8_scaled_mm(a, w.t(), s, t, engine.BF16, None).relu()


@pytest.fixture(params=["plain", "vllm._custom_ops", "sgl_kernel"])
def called(request):
    """The programs whose operators exist."""
    with ExitStack() as stack:
        if request.param == "plain":
            if any(hasattr(torch.ops._C, name) for name in ("cutlass_scaled_mm", "rms_norm")):
                pytest.skip("vLLM is loaded")
            stack.enter_context(engine.loaded("CUDA"))
        elif importlib.util.find_spec(request.param.partition(".")[0]) is None:
            pytest.skip(f"{request.param} is not installed")
        else:
            importlib.import_module(request.param)
        found = gemmdb.inductor.open_ops()
        yield [one for name, one in zip(NAMES, (vllm, sgl), strict=True) if found[name] == "opened"]
        gemmdb.inductor.open_ops([])


def test_a_forced_kernel_is_right(kit, called):
    assert called
    for model in called:
        kit.anew()
        inputs = operands()
        found, code = kit.compiled(model, *inputs, config=NARROW)
        kit.close(found, model(*inputs))
        assert kit.served() == [NARROW.text]
        assert "scaled_mm.default(" not in code


@pytest.mark.parametrize("config", FORMS, ids=lambda config: config.text)
def test_a_kernel_reads_the_int4_weights_of_torchao(kit, config):
    def model(a, w, s, z):
        return torch.ops.mslk.bf16i4bf16_rowwise(a, w, s, z).relu()

    if importlib.util.find_spec("mslk") is not None:
        pytest.skip("MSLK is installed")
    with engine.loaded("CUDA"):
        assert gemmdb.inductor.open_ops(engine.MSLK_INT4) == {engine.MSLK_INT4: "opened"}
        weight = torch.randint(-128, 128, (1032, 1024), dtype=torch.int8, device="cuda")
        scale, zeros = (torch.rand(16, 1032, device="cuda").to(engine.BF16) for _ in range(2))
        inputs = rand(5, 2048).to(engine.BF16), weight, scale, zeros
        found, code = kit.compiled(model, *inputs, config=config)
        kit.close(found, model(*inputs))
        gemmdb.inductor.open_ops([])
    assert kit.served() == [config.text]
    assert "bf16i4bf16_rowwise.default(" not in code


def test_the_faster_of_the_kernel_and_the_operator_is_served(kit, called):
    gemmdb.inductor.enable()  # For the patches of torch.
    for model in called:
        kit.anew()
        inputs = operands()
        with active.use(Guessing()):
            kit.close(torch.compile(model)(*inputs), model(*inputs))
        stats = gemmdb.inductor.stats()
        (product,) = stats["products"]
        assert stats["errors"] == []
        if "its times vary too much" in product["note"] and not kit.alone:
            pytest.skip("other tests use the GPU")
        timed = product["evidence"]["confirmed"]
        assert (product["config"] == NARROW.text) == (timed["us"] * 1.02 <= timed["aten_us"])
        assert ("the engine's operator stays" in product["note"]) == (product["config"] != NARROW.text)
