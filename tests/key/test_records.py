"""Config, Device, Protocol, Toolchain, Measurement and Verdict: what they refuse, and what a Verdict says."""

import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdb.errors import InputError
from gemmdb.kernels.config import ATEN, Config
from gemmdb.key import toolchain
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.key.toolchain import Toolchain
from gemmdb.table.measurement import Measurement, Protocol, Status, Times, one_line
from gemmdb.table.verdict import decide, pool

AUTO = dict.fromkeys(("threads_m", "threads_n", "threads_k", "blocks_m", "blocks_n", "blocks_k"), 0)
CPP = Config.of("cpp", "packed_gemm", **AUTO)
CPP_SPLIT = Config.of("cpp", "packed_gemm", **AUTO | {"threads_k": 2})
CPU = Device("cpu", "cpu", "Some CPU", 2)
HOST = Protocol("host", "cold", 1, 30)
PROBLEM = Problem.gemm("mm", m=16, n=64, k=64)


def row(config, us, run="a", status=Status.OK, aten=10.0, spread=0.001, torch="2.13.0"):
    times = Times(us, us * (1 - spread), us * (1 + spread), 30, aten) if status in ("ok", "slow") else None
    return Measurement(PROBLEM, config, CPU, HOST, Toolchain(torch=torch), run, status, times)


@pytest.mark.parametrize(
    ("backend", "kernel", "params"),
    [
        ("aten", "__import__('os')", {}),
        ("numpy", "default", {}),
        ("aten", "default", {"EVEN_K": 1}),
        ("cpp", "packed_gemm", {"threads_m": 1}),
        ("cpp", "packed_gemm", AUTO | {"threads_m": -1}),
        ("cpp", "packed_gemm", AUTO | {"threads_m": 2**40}),
        ("cpp", "packed_gemm", AUTO | {"threads_m": True}),
        ("cpp", "packed_gemm", AUTO | {"threads_m": "1; rm"}),
    ],
)
def test_a_config_outside_the_registry_is_refused(backend, kernel, params):
    with pytest.raises(InputError):
        Config.of(backend, kernel, **params)


@pytest.mark.parametrize(
    "fields",
    [
        ("tpu", "v5", "TPU", 1),
        ("cpu", "CPU!", "Some CPU", 1),
        ("cpu", "cpu", "", 1),
        ("cpu", "cpu", "Some\nCPU", 1),
        ("cpu", "cpu", "x" * 121, 1),
        ("cpu", "cpu", "Some CPU", 0),
        ("cuda", "sm90", "H200", 132, -1),
        ("cpu", "cpu", "Some CPU", 1, 0, False, "x" * 100),
        ("cpu", "cpu", "Some CPU", 1, 0, False, "\x1b[31m"),
    ],
)
def test_impossible_devices_are_refused(fields):
    with pytest.raises(InputError, match="no such device"):
        Device(*fields)


def test_memory_variants_and_mig_slices_are_other_devices_and_figures_are_not():
    whole = Device("cuda", "sm90", "NVIDIA H200", 132, 141)
    others = [
        Device("cuda", "sm90", "NVIDIA H200", 132, 71),
        Device("cuda", "sm90", "NVIDIA H200", 16, 141, mig=True),
        Device("cuda", "sm90", "NVIDIA H200", 131, 141),
    ]
    assert len({whole.key, *(device.key for device in others)}) == 4
    assert whole == Device("cuda", "sm90", "NVIDIA H200", 132, 141, figures={"clock_mhz": 1980})
    assert whole.named("nvidia h200")
    assert whole.named("SM90")
    assert not whole.named("H200")
    assert (whole.slug, CPU.slug) == ("sm90-nvidia-h200", "cpu-some-cpu-2t")


@pytest.mark.parametrize(
    "fields",
    [
        ("sundial", "cold", 1, 1),
        ("host", "warm", 1, 1),
        ("host", "cold", 0, 1),
        ("host", "cold", 1, 0),
        ("host", "cold", 1.5, 1),
        ("host", "cold", 1, 1, "x" * 500),
    ],
)
def test_impossible_protocols_are_refused(fields):
    with pytest.raises(InputError, match="no such protocol"):
        Protocol(*fields)


@pytest.mark.parametrize("numbers", [(0.0, 0.0, 0.0, 1, 1.0), (1.0, 2.0, 3.0, 1, 1.0), (1.0, 1.0, 1.0, 0, 1.0)])
def test_impossible_times_are_refused(numbers):
    with pytest.raises(InputError):
        Times(*numbers)
    with pytest.raises(InputError):
        Times(float("nan"), 1.0, 2.0, 1, 1.0)
    with pytest.raises(InputError):
        Times(1.0, 1.0, 1.0, 1, float("inf"))
    with pytest.raises(InputError):
        Times(5e-324, 5e-324, 5e-324, 1, 1e9)  # Its ratio would be 0.


def test_a_measurement_has_times_when_its_status_has():
    times = Times(1.0, 1.0, 1.0, 1, 1.0)
    for status in Status:
        timed = status in (Status.OK, Status.SLOW)
        with pytest.raises(InputError, match="do not go together"):
            Measurement(PROBLEM, ATEN, CPU, HOST, Toolchain(), "run", status, None if timed else times)
    for run in ("", "a b", "x" * 65):
        with pytest.raises(InputError, match="run id"):
            Measurement(PROBLEM, ATEN, CPU, HOST, Toolchain(), run, Status.OK, times)
    with pytest.raises(InputError, match="one line"):
        Measurement(PROBLEM, ATEN, CPU, HOST, Toolchain(), "run", Status.ERROR, detail="two\nlines")


@given(text=st.text(max_size=400))
def test_one_line_fits_a_detail(text):
    Measurement(PROBLEM, ATEN, CPU, HOST, Toolchain(), "run", Status.ERROR, detail=one_line(text))


def test_a_verdict_is_the_fastest_and_says_by_how_much():
    verdict = decide([row(ATEN, 10.0), row(CPP, 8.0), row(CPP_SPLIT, 9.0)])
    assert (verdict.pick, verdict.ties) == (CPP, (CPP,))
    assert verdict.ratio == pytest.approx(0.8)
    assert verdict.speedup == pytest.approx(1.25)
    assert verdict.expected_us == pytest.approx(8.0)
    assert verdict.aten_us == pytest.approx(10.0)


def test_ties_go_to_aten_then_to_the_cheaper_compile():
    assert decide([row(ATEN, 10.0), row(CPP, 9.95)]).pick == ATEN
    assert decide([row(ATEN, 10.0), row(CPP, 9.5, spread=0.03), row(CPP_SPLIT, 9.0, spread=0.03)]).ties[0] == CPP
    wide = decide([row(ATEN, 10.0, spread=0.1), row(CPP, 9.0, spread=0.05)])
    assert (wide.pick, wide.ties) == (ATEN, (ATEN, CPP))


@pytest.mark.parametrize("status", [Status.WRONG, Status.CRASH])
def test_what_was_wrong_once_is_never_picked(status):
    rows = [row(ATEN, 10.0), row(CPP, 1.0), row(CPP, 1.0, run="b"), row(CPP, 1.0, run="c", status=status)]
    assert decide(rows).pick == ATEN
    assert [one.config for one in pool(rows)] == [ATEN]


@pytest.mark.parametrize("status", [Status.ERROR, Status.TIMEOUT, Status.OOM, Status.ILLEGAL])
def test_a_failure_of_another_run_does_not_condemn(status):
    assert decide([row(ATEN, 10.0), row(CPP, 5.0), row(CPP, 5.0, run="b", status=status)]).pick == CPP


def test_without_a_full_row_of_aten_there_is_no_verdict():
    assert decide([row(CPP, 5.0)]) is None
    assert decide([row(CPP, 5.0), row(ATEN, 10.0, status=Status.SLOW)]) is None
    assert decide([]) is None


def test_a_slow_candidate_is_not_picked_by_its_estimate():
    assert decide([row(ATEN, 10.0), row(CPP, 5.0, status=Status.SLOW)]).pick == ATEN


@given(
    times=st.lists(st.tuples(st.sampled_from([ATEN, CPP, CPP_SPLIT]), st.floats(1, 100)), max_size=9),
    seed=st.integers(),
)
def test_a_verdict_does_not_depend_on_the_order_of_the_rows(times, seed):
    rows = [row(config, us, run=f"run{i}") for i, (config, us) in enumerate(times)]
    shuffled = rows[:]
    random.Random(seed).shuffle(shuffled)
    assert decide(rows) == decide(shuffled)


def test_the_verdicts_toolchain_is_the_newest():
    rows = [row(ATEN, 10.0, run=v, torch=f"2.{v}.0") for v in ("9", "13", "10")]
    assert decide(rows).toolchain.torch == "2.13.0"


def test_toolchain_classes():
    assert Toolchain(torch="2.13.0+cpu").klass == Toolchain(torch="2.13.1").klass == "cpu-torch2.13"
    assert Toolchain(torch="2.11.0", cuda="13.0").klass == Toolchain(torch="2.13.0", cuda="13.1").klass == "cuda13"
    assert Toolchain(torch="nightly").klass == "cpu-torchnightly"
    with pytest.raises(InputError, match="longer than 80"):
        Toolchain(driver="x" * 81)


@pytest.fixture
def fake_torch(tmp_path, monkeypatch):
    """Installs a torch of a given build as a distribution that can be read and not imported."""

    def install(version, cuda):
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "version.py").write_text(f"__version__ = {version!r}\ncuda: Optional[str] = {cuda!r}\n")
        info = tmp_path / f"torch-{version.partition('+')[0]}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version.partition('+')[0]}\n")
        monkeypatch.setattr(sys, "path", [str(tmp_path)])
        toolchain.installed.cache_clear()

    yield install
    toolchain.installed.cache_clear()


def test_installed_cuda_is_read_from_a_build_whose_metadata_does_not_name_it(fake_torch):
    fake_torch("2.11.0+cu130", "13.0")
    here = toolchain.installed("cuda")
    assert (here.torch, here.cuda, here.klass) == ("2.11.0+cu130", "13.0", "cuda13")
    assert toolchain.installed("cpu").klass == "cpu-torch2.11"


def test_a_cpu_build_of_torch_is_no_toolchain_for_a_gpu(fake_torch):
    fake_torch("2.13.0+cpu", None)
    assert toolchain.installed("cuda") is None
    assert toolchain.installed("cpu").torch == "2.13.0+cpu"


def test_without_torch_nothing_is_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    toolchain.installed.cache_clear()
    assert toolchain.installed("cpu") is None
    toolchain.installed.cache_clear()


@pytest.mark.parametrize("size", [{"units": 2**31}, {"units": 10**400}, {"units": 2, "memory_gib": 10**400}])
def test_a_device_of_absurd_size_is_refused(size):
    with pytest.raises(InputError, match="no such device"):
        Device("cpu", "cpu", "Some CPU", **size)
