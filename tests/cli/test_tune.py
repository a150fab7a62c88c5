"""`gemmdb tune` of real programs."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from gemmdb.cli.tune import FOLDER, TuneOptions
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.tune import state, timing

DEVICE = Device("cpu", "cpu", "Example CPU", 2, isa="avx2")

PROGRAM = """
import torch
import torch._inductor.config

torch._inductor.config.freezing = True
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64)).eval()
run = torch.compile(model)
with torch.no_grad():
    for _ in range(20):
        run(torch.ones(64, 256))
print("served")
"""


@pytest.fixture
def program(environment) -> list[str]:
    Path("serve.py").write_text(PROGRAM)
    return [sys.executable, "serve.py"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_whole_way(gemmdb, program, monkeypatch):
    # Threads that wait for each other take minutes beside other workers of the tests.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    dry = gemmdb("tune", "--dry-run", "--json", "--", *program)
    assert dry.code == 0, dry.err
    plan = json.loads(dry.out)["plan"]
    assert [one["calls"] for one in plan["problems"]] == [20, 20]
    assert [one["problem"].split()[2] for one in plan["problems"]] == ["n=512", "n=64"]
    assert plan["saving_us"] is None
    assert plan["seconds"] > 0

    # Hardly any time: the build ends what it has begun, unfinished, and the same command goes on from there.
    first = gemmdb("tune", "--budget", "0.1s", "--repeats", "0", "--json", "--", *program)
    assert first.code == 0, first.err
    assert "already recorded" in first.err
    assert json.loads(first.out)["built"]["left"] > 0

    whole = gemmdb("tune", "--repeats", "1", "--json", "--", *program)
    assert whole.code in (0, 1), whole.err
    found = json.loads(whole.out)
    assert (found["before"]["answered"], found["after"]["answered"]) == (0, 2)
    (graph,) = found["gained"]["graphs"]
    assert graph["products"] == ["addmm 1x64x512x256", "addmm 1x64x64x512"]
    assert graph["calls"] == 20
    assert found["gained"]["without_us"] > 0

    again = gemmdb("tune", "--repeats", "1", "--", *program)
    assert again.code == whole.code
    assert "already timed" in again.err
    assert "nothing to build" in again.err
    (gain,) = [line for line in again.out.splitlines() if line.startswith("gain ")]
    if found["gained"]["verdict"] == "same kernels":  # where ATen won both problems
        assert "both sides run the same kernels" in gain
    else:
        low, high = found["gained"]["interval"]
        assert f"{found['gained']['gain']:.3f}x, between {low:.3f}x and {high:.3f}x" in gain
    assert "rung" not in again.out
    (now,) = [line for line in again.out.splitlines() if line.startswith("tables now ")]
    assert sum(map(int, re.findall(r"(\d+) (?:table|ATen \(measured best\))", now))) == 2


@pytest.mark.parametrize(("command", "out", "said"), [
    ([sys.executable, "-c", "print('hello')"], "hello\n",
     "nothing was recorded: 1 Python process ran, none imported torch"),
    ([sys.executable, "-c", "raise SystemExit(3)"], "",
     "the program ended with exit code 3; it has to run without an error"),
    (["no-such-program"], "", "cannot run 'no-such-program': No such file or directory"),
])  # fmt: skip
def test_a_program_that_cannot_be_tuned(gemmdb, command, out, said):
    done = gemmdb("tune", "--", *command)
    assert (done.code, done.out, done.err.splitlines()[-1]) == (2, out, f"gemmdb: {said}")
    corrected = gemmdb("tune", "--", "another-program")
    assert "cannot run 'another-program'" in corrected.err, "a misspelt command keeps the folder to itself"


@pytest.mark.parametrize("name", ["tune", "freeze"])
def test_a_folder_of_another_program_is_told_with_a_line_to_paste(gemmdb, name):
    state.open_folder(Path(f"gemmdb-{name}"), ("python", "one.py"), False)
    done = gemmdb(name, "--budget", "1m", "--", "python3", "my model.py")
    told = f"gemmdb-{name} belongs to `python one.py`: choose another --folder or use --fresh: "
    done.refused(told + f"gemmdb {name} --budget 1m --folder gemmdb-{name}-2 -- python3 'my model.py'")


@pytest.mark.parametrize("name", ["tune", "freeze", "record"])
def test_a_file_that_is_no_program_leaves_nothing_behind(gemmdb, name):
    for file, why in (("w.jsonl", "`python PROGRAM.py`"), ("my m.py", "`python 'my m.py'`")):
        Path(file).touch()
        gemmdb(name, file).refused(f"cannot run '{file}': it is not executable; a command such as {why} is expected")
    Path("here").touch(0o755)
    gemmdb(name, "here").refused("cannot run 'here': it is not in a folder of PATH; ./here names the file here")
    Path("folder").mkdir()
    gemmdb(name, "./folder").refused("cannot run './folder': it is a folder; a command such as `python PROGRAM.py`")
    assert sorted(path.name for path in Path().iterdir() if path.name.startswith("gemmdb-")) == []


def test_ctrl_c_before_the_program_compiles_anything_is_an_interrupt(gemmdb):
    done = gemmdb("tune", "--", sys.executable, "-c", "import os; os.kill(os.getpid(), 2)")
    assert done.code == 130
    assert "nothing was recorded: " in done.err
    assert "interrupted" in done.err.splitlines()[-1]


def test_a_program_that_ctrl_c_ends_with_its_own_exit_code_was_interrupted(gemmdb):
    """As a compile does that turns the interrupt into an error of its own. Ctrl-C reaches both."""
    stopped = "import os, time; os.kill(os.getppid(), 2); time.sleep(60)"
    program = f"try:\n    exec({stopped!r})\nexcept KeyboardInterrupt:\n    raise SystemExit(1)"
    done = gemmdb("tune", "--", sys.executable, "-c", program)
    assert done.code == 130, done.err
    assert "it has to run without an error" not in done.err
    assert "interrupted" in done.err.splitlines()[-1]


def test_a_plan_of_what_was_recorded_before(gemmdb, table):
    """One of the GEMMs that miss cannot gain. The program is not run, and nothing is built."""
    device = DEVICE.text
    plain = Problem.gemm("mm", m=16, n=64, k=64, dtype="fp32")
    packed = Problem.gemm("mm", m=99, n=512, k=1024, dtype="fp32", constant_weight=True)
    lines = [{"problem": one.text, "count": 1, "calls": 9, "device": device} for one in (plain, packed)]
    lines[1]["origins"] = [{"module": "blocks.0.up", "source": "net/model.py:7"}]
    known = state.open_folder(Path("gemmdb-tune"), ["no-such-program"], False)
    known.recorded = True
    known.save()
    known.workload.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    done = gemmdb("tune", "--dry-run", "--", "no-such-program")
    assert done.code == 0, done.err
    assert "already recorded" in done.err
    assert "1 GEMM: ATen is the only kernel for it" in done.err
    (row,) = [line for line in done.out.splitlines() if "99x512x1024" in line]
    assert row.startswith("build")
    assert done.err.index("it can gain in") < done.err.index("already recorded") < done.err.index("in 1 of 2 GEMMs")
    (freeze,) = [line for line in done.out.splitlines() if "torch._inductor.config.freezing = True" in line]
    assert freeze.startswith("next")
    assert "gemmdb tune -- no-such-program" in done.out
    assert row.endswith("blocks.0.up at net/model.py:7")
    found = json.loads(gemmdb("tune", "--dry-run", "--json", "--", "no-such-program").out)
    assert [one["origins"] for one in found["plan"]["problems"]] == [["blocks.0.up at net/model.py:7"]]
    assert (found["built"], found["gained"]) == (None, None)


def test_the_program_is_timed_with_the_table_that_was_built(monkeypatch, tmp_path):
    monkeypatch.setenv("GEMMDB_TABLES", "theirs.db")
    monkeypatch.delenv("VLLM_DISABLE_COMPILE_CACHE", raising=False)
    found = timing.environment(tmp_path / "mine.db")
    assert found == {
        "GEMMDB_TABLES": f"{tmp_path / 'mine.db'}{os.pathsep}theirs.db", "VLLM_DISABLE_COMPILE_CACHE": "1",
        "GEMMDB_ON_MISS": "aten",
    }  # fmt: skip
    monkeypatch.setenv("VLLM_DISABLE_COMPILE_CACHE", "0")
    assert timing.environment(None)["VLLM_DISABLE_COMPILE_CACHE"] == "0"


def test_a_program_without_answers_is_not_timed(gemmdb):
    """The program, which would fail, is not run."""
    plain = Problem.gemm("mm", m=17, n=67, k=129, dtype="fp32")
    known = state.open_folder(Path("gemmdb-tune"), ["no-such-program"], False)
    known.recorded = True
    known.save()
    known.workload.write_text(json.dumps({"problem": plain.text, "count": 1, "calls": 9, "device": DEVICE.text}) + "\n")
    done = gemmdb("tune", "--", "no-such-program")
    assert done.code == 0, done.err
    assert "4/4 not timed: no table answers" in done.err
    assert done.out.splitlines()[-1].endswith("torch._inductor.config.freezing = True")


def test_the_command_that_continues_can_be_pasted():
    options = TuneOptions(command=["python", "my server.py"], budget="1h", dry_run=True, repeats=None, wait=None,
                          folder=FOLDER, table=Path("t.db"), effort=None)  # fmt: skip
    assert options.line() == "gemmdb tune --budget 1h --table t.db --dry-run -- python 'my server.py'"
    assert options.line(dry_run=False) == "gemmdb tune --budget 1h --table t.db -- python 'my server.py'"
    waits = "gemmdb tune --budget 1h --table t.db --wait 1h --dry-run -- python 'my server.py'"
    assert options.line(wait="1h") == waits
