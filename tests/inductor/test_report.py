"""What a person is told: the summary, the line in the log, and the program that prints it."""

import logging
import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
import torch
import torch._inductor.config as inductor_config
from hypothesis import given
from hypothesis import strategies as st
from kit.inductor import CPP, ROOT
from torch import nn

import gemmdb.inductor
from gemmdb.devices import registry
from gemmdb.inductor import __main__ as runner
from gemmdb.inductor.entry import enable
from gemmdb.inductor.observe.journal import SEARCH, Event
from gemmdb.inductor.observe.summary import MAX_LISTED, of_events
from gemmdb.key.problem import Problem
from gemmdb.outcome import Kind

KEY = (
    "addmm m=8 n={n} k={k} a=fp32:row:4 b=fp32:col:4 out=fp32 bias=1d:fp32:4 scalars=unit fusion={fusion} fp32=ieee"
    " acc=fp32 reduced=0 deterministic=0 constant=1"
)
H200 = registry.find("NVIDIA H200").text


class Model(nn.Module):
    """Two layers alike, two others, and a GEMM that gemmdb does not handle."""

    def __init__(self):
        super().__init__()
        self.alike = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))
        self.third, self.fourth = nn.Linear(64, 32), nn.Linear(32, 16)

    def forward(self, x):
        for layer in self.alike:
            x = torch.cumsum(layer(x), 1)
        x = self.fourth(torch.cumsum(self.third(x), 1))
        return torch.baddbmm(x[None], x[None], torch.ones(1, 16, 16))


@pytest.fixture
def compiled(kit, table):
    """A compiled model: one problem has a kernel, one is ATen's, one misses."""
    known = table({KEY.format(n=64, k=64, fusion="none"): kit.CPP, KEY.format(n=32, k=64, fusion="none"): kit.ATEN})
    gemmdb.inductor.enable(on_miss="aten", tables=[known])
    with torch.no_grad(), inductor_config.patch(freezing=True):
        kit.compiled(Model().eval(), torch.randn(8, 64))
    return gemmdb.inductor.summary()


MAY_SAVE = "a build (`gemmdb tune -- python PROGRAM`) may save an unknown time"


@pytest.fixture(autouse=True)
def no_program(monkeypatch):
    """The tests' own command is not repeated."""
    monkeypatch.setattr(sys, "argv", ["-c"])


def lines(text):
    return textwrap.dedent(text).strip("\n")


def test_the_summary_of_a_compiled_model(compiled):
    head, per_call, *_, last = str(compiled).splitlines()
    assert (head, last) == ("gemmdb: 1 graph with 4 GEMMs", "not handled by gemmdb: 1 x baddbmm")
    less = "expected 200.0 us instead of 300.0 with ATen: 100.0 us less (33.3%), for the 3 with a known time"
    assert per_call == f"per call of the graph: {less}"
    missed = "\nATen (nothing known); a build may save an unknown time\n  unknown  1 x addmm m=8 n=16 k=32"
    assert missed in str(compiled)
    (gain,) = compiled.gains
    assert (gain.problem, gain.count, gain.us, gain.config) == ("addmm m=8 n=64 k=64 fp32", 2, 100.0, CPP.text)
    assert gemmdb.inductor.stats()["rungs"] == {"exact": 3, "aten": 1}
    gemmdb.inductor.reset_stats()
    assert str(gemmdb.inductor.summary()) == "gemmdb: no graph with a GEMM was compiled"


def of(op, rung, count=1, us=None, speedup=None, note="", config="triton:tile block_m=16", pick="", **sizes):
    problem = Problem.gemm(op, **{"m": 16, "n": 4096, "k": 4096} | sizes)
    evidence = {"pick": pick} if pick else {}
    return [Event(problem.text, rung, config, H200, us, speedup, note=note, evidence=evidence)] * count


MIXED = of("mixed_mm", "near", 4, 10.0, 2.8)
LIVE = of("mm", "live", 1, 40.0, 1.0, "exact: no verdict", "aten:default", n=32000)
REFUSED = of("mm", "exact", 1, 11.0, 1.0, "it would read past the rows", "aten:default", "triton:tile block_m=16")
LEFT = of(
    "mixed_mm", "aten", 2, note="not tuned: its sizes are symbolic; exact: no verdict", config="aten:default", m=8
)


def test_the_summary_of_a_gpu_says_what_a_build_may_save(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "serve.py").touch()
    monkeypatch.setattr(sys, "argv", ["serve.py", "--rows", "8"])
    found = of_events([*MIXED, *LIVE, *REFUSED, *LEFT], 2, ["lookup: ValueError: x"])
    (missed,) = found.missed
    assert str(found) == lines(f"""
        gemmdb: 2 graphs with 8 GEMMs
        per call of all graphs: expected 91.0 us instead of 163.0 with ATen: 72.0 us less (44.2%), for the 6 with a known time

        outcome               GEMMs  kernels  ATen us  expected us  gain us   gain
        near                      4        4    112.0         40.0     72.0  64.3%
        ATen (measured best)      1        0     40.0         40.0      0.0   0.0%
        ATen (nothing known)      2        0        -            -        -      -
        ATen (refused)            1        0     11.0         11.0      0.0   0.0%
        all                       8        4    163.0         91.0     72.0  44.2%

        largest gains
          72.0 us  4 x mixed_mm m=16 n=4096 k=4096 bf16 x int8  triton:tile

        ATen (nothing known); a build may save about {missed.us:.1f} us per call
          {missed.us:.1f} us  2 x mixed_mm m=8 n=4096 k=4096 bf16 x int8  not tuned: its sizes are symbolic
          to build: gemmdb tune -- python serve.py --rows 8

        ATen (refused)
          1 x mm m=16 n=4096 k=4096 bf16  it would read past the rows
        failure inside gemmdb (the compile continued without it): lookup: ValueError: x
    """)  # noqa: E501
    assert 20 < missed.us < 60


def test_gemms_that_inductor_searches_are_neither_our_kernels_nor_atens():
    found = of_events(of("mm", "aten", 2, note="Inductor searches, as max_autotune asks", config=SEARCH), 1)
    assert (found.total.count, found.total.kernels, found.missed) == (2, 0, ())
    assert "tuned by Inductor, as max_autotune requests" in str(found)
    assert "ATen (" not in str(found)
    assert found.line.endswith("Inductor autotunes 2")


def test_gemms_that_only_aten_can_serve_stand_under_the_reason():
    """A build leaves them out, so the summary says what stands in the way."""
    only = "ATen is the only kernel for it"
    notes = (f"{only}: no constant; exact: no verdict", f"{only}; exact: no verdict")
    alone = [of("mm", "aten", 2, note=notes[0], config="aten:default", n=n) for n in (64, 128)]
    alone += [of("bmm", "aten", note=notes[1], config="aten:default", batch=2)]
    found = of_events([event for same in alone for event in same], 1)
    assert (found.missed, [one.count for one in found.alone]) == ((), [2, 2, 1])
    assert str(found).endswith(
        lines("""
        ATen (refused: no constant)
          2 x mm m=16 n=64 k=4096 bf16
          2 x mm m=16 n=128 k=4096 bf16

        ATen (refused: ATen is the only kernel for it)
          1 x bmm batch=2 m=16 n=4096 k=4096 bf16
    """)
    )


def test_the_rest_of_a_long_list_is_counted():
    events = [event for n in range(1, MAX_LISTED + 4) for event in of("mixed_mm", "exact", 2, 10.0, 1.0 + n, n=64 * n)]
    text = str(of_events(events, 1))
    assert text.endswith("\n  and 6 GEMMs more")
    assert text.index("n=704 ") < text.index("n=640 ")
    assert "n=192 " not in text


def test_a_program_that_became_slower_is_told_so():
    slower = of_events(of("mm", "exact", 1, 20.0, 0.5), 1)
    assert "expected 20.0 us instead of 10.0 with ATen: 10.0 us more (100.0%)\n" in str(slower)


EVENTS = st.lists(
    st.builds(
        of, st.just("mm"), st.sampled_from(["exact", "near", "model", "live", "forced", "aten"]), st.integers(1, 3),
        st.none() | st.floats(0, 1e6, allow_subnormal=False), st.none() | st.floats(0.01, 100),
        st.sampled_from(["", "why"]),
        st.sampled_from(["aten:default", "triton:tile block_m=16"]), m=st.integers(1, 5),
    )
)  # fmt: skip


@given(EVENTS, st.integers(0, 3))
def test_everything_is_counted_once_and_the_gains_add_up(groups, uncovered):
    events = [event for group in groups for event in group]
    found = of_events([*events, *[Event("conv1x1", "uncovered")] * uncovered], 1)
    assert found.total.count == len(events)
    unknown = sum(event.outcome.kind is Kind.ATEN_UNKNOWN for event in events)
    assert sum(one.count for one in found.missed) == unknown
    assert sum(found.uncovered.values()) == uncovered
    timed = [event for event in events if event.expected_us and event.speedup]
    assert found.total.timed == len(timed)
    wanted = sum(event.expected_us * (event.speedup - 1) for event in timed)
    assert found.total.gain_us == pytest.approx(wanted, rel=1e-9, abs=1e-3)
    assert "\n" not in found.line
    assert str(found).startswith("gemmdb: 1 graph with ")


def test_each_graph_is_a_line_of_the_log(kit, table, caplog):
    caplog.set_level(logging.INFO, "gemmdb")
    gemmdb.inductor.enable(on_miss="aten", tables=[table({})])
    x, w = torch.randn(8, 64), torch.randn(64, 32)
    kit.compiled(torch.mm, x, w)
    kit.compiled(torch.cos, x)
    kit.compiled(lambda x, w: (x @ w).sin() @ w.t(), x, w)
    kit.checked(torch.nn.Linear(64, 32), x, freezing=True)
    assert [record.message for record in caplog.records if record.name == "gemmdb"] == [
        "graph with 1 GEMM: 1 ATen (refused)",
        "graph with 2 GEMMs: 2 ATen (refused)",
        f"graph with 1 GEMM: 1 ATen (nothing known); {MAY_SAVE}",
    ]
    assert gemmdb.inductor.summary().graphs == 3


PROGRAM = """
    import sys
    import torch
    assert __name__ == "__main__"
    print(*sys.argv[1:], torch.compile(torch.mm)(torch.ones(2, 3), torch.ones(3, 4)).sum().item())
    sys.exit(3)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("variable", "level"), [("GEMMDB_LOG", "INFO"), ("TORCH_LOGS", "gemmdb")])
def test_a_program_is_run_with_gemmdb_and_the_summary_is_printed_at_its_end(tmp_path, variable, level):
    """The log goes to stderr too, where the program sets up none of its own, or through torch's logging."""
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, "-W", "ignore", "-m", "gemmdb.inductor", str(tmp_path / "program.py"), "-a", "b"]
    environment = {**os.environ, variable: level, "GEMMDB_ON_MISS": "aten", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (3, "-a b 24.0\n")
    logged, *rest = [line for line in done.stderr.splitlines() if "gemmdb" in line]
    assert logged.startswith("gemmdb INFO: ") == (variable == "GEMMDB_LOG")
    assert logged.endswith("graph with 1 GEMM: 1 ATen (refused)")
    assert rest[0] == "gemmdb: 1 graph with 1 GEMM"


def test_the_program_must_be_there(tmp_path, capsys):
    for arguments, code in (([], 2), (["nowhere.py"], 2), (["-m"], 2)):
        with pytest.raises(SystemExit) as ended:
            runner.main(arguments)
        assert ended.value.code == code
    told = capsys.readouterr().err.splitlines()
    assert told[1] == "python -m gemmdb.inductor: nowhere.py: no such file"
    for line, missing in ((told[0], "PROGRAM.py"), (told[2], "-m MODULE")):
        assert line.endswith(f"the program is missing: python -m gemmdb.inductor {missing} [ARGUMENTS]")
    with pytest.raises(SystemExit):
        runner.main([str(tmp_path)])
    assert f"{tmp_path} is a folder; name a Python file" in capsys.readouterr().err
    runner.main(["--help"])
    assert capsys.readouterr().out.startswith("`python -m gemmdb.inductor PROGRAM.py")


def test_a_wrong_setting_is_one_line_before_the_program_runs(tmp_path, monkeypatch, capsys):
    (tmp_path / "program.py").write_text("raise ValueError('it ran')")
    monkeypatch.setenv("GEMMDB_ON_MISS", "explode")
    with pytest.raises(SystemExit) as ended:
        runner.main([str(tmp_path / "program.py")])
    said = "python -m gemmdb.inductor: GEMMDB_ON_MISS='explode'; known: aten, live, error\n"
    assert (ended.value.code, capsys.readouterr().err) == (2, said)


def test_the_log_is_set_up_once_and_only_where_it_is_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(enable.log, "handlers", [])
    monkeypatch.setattr(enable.log, "level", logging.NOTSET)
    for value in ("", "no such level"):
        monkeypatch.setenv("GEMMDB_LOG", value)
        enable.set_up_log()
        assert (enable.log.handlers, enable.log.level) == ([], logging.NOTSET)
    monkeypatch.setenv("GEMMDB_LOG", "info")
    enable.set_up_log()
    enable.set_up_log()
    assert (len(enable.log.handlers), enable.log.level) == (1, logging.INFO)
    # The handlers of the root logger, here those of pytest, print it instead.
    enable.log.info("once")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    enable.log.info("gemmdb: twice")
    assert capsys.readouterr().err == "gemmdb INFO: twice\n"


def test_a_summary_says_that_its_gain_is_of_the_compiled_sizes():
    """It said the gain of the first call's rows of a graph that serves all others, too."""
    problem = Problem.gemm("mm", m=8, n=64, k=64)
    event = Event(problem.text, "exact", CPP.text, expected_us=50.0, speedup=2.0, ranges={"m": [2, 64]})
    said = str(of_events([event, replace(event, ranges={})], 1)).splitlines()[1]
    assert said.endswith("100.0 us less (50.0%), at the compiled sizes of 1 with ranges")
