"""benchmarks.torch frozen: its steps, its report, and the whole of it on this CPU."""

from argparse import Namespace

import pytest

from benchmarks.common import json_lines
from benchmarks.torch import frozen, frozen_program, frozen_report


def options(folder, **more):
    given = {"starts": 4, "gpus": 1, "each": 1, "seconds": 900.0, "budget": "1s", "size": "tiny", "pieces": "int8"}
    return Namespace(folder=folder, report=False, child=None, **{**given, **more})


def start(label, digest="a", seconds=10.0, timings=(), gpu="0", **more):
    mode = label.split()[0]
    gemmdb = {"benchmarked": 0, "errors": [], "frozen": {"identity": "x"}} if mode == "frozen" else {}
    return {"kind": "start", "label": label, "gpu": gpu, "digests": {"int8": digest}, "compile_s": seconds,
            "timings": dict(timings), "home": [], **gemmdb, **more}  # fmt: skip


def gain(label, gemmdb, kept):
    ends = {"gemmdb/default": gemmdb, "frozen/default": gemmdb * kept, "frozen/gemmdb": kept}
    return {"kind": "gain", "label": label, "speedup": {"4": {name: [one, one, one] for name, one in ends.items()}}}


def test_a_third_of_the_starts_is_deterministic_and_each_has_its_pair(tmp_path):
    steps = list(frozen.starts(options(tmp_path, starts=6)))
    assert [step.job["deterministic"] for step in steps[4:6]] == [[True], [True]]
    assert sum(step.job["deterministic"] == [True] for step in steps) == 4
    assert {step.label for step in steps if step.frozen} == {f"frozen {number}" for number in range(6)}


def test_the_report_says_what_is_as_wanted():
    lines = [start("frozen 0", gpu="1"), start("default 0"), start("frozen 1"), start("default 1"),
             gain("int8", 1.5, 0.99)]  # fmt: skip
    said = list(frozen_report.lines(lines))
    assert said[0] == "code: 2 frozen starts on 2 GPUs, 1 pieces, one digest each"
    assert said[1].startswith("timing: 0 of 2 starts timed something; 0 wrote a table, 0 had errors; 1 identity")
    assert said[2].endswith("median ratio of 2 pairs 1.000, as wanted")
    assert said[-1].endswith("frozen/gemmdb 0.990, as wanted")


def test_the_report_says_what_is_not_as_wanted():
    lines = [start("frozen 0", seconds=11.0), start("default 0"), start("frozen 1", "b", timings={"benchmarks": 3}),
             {"kind": "start", "label": "default 1", "failure": "no memory"}, gain("int8", 1.5, 0.9)]  # fmt: skip
    said = list(frozen_report.lines(lines))
    assert said[0] == "failed: start default 1: no memory"
    assert said[1].endswith('different digests: {"int8": 2}')
    assert said[2].startswith('timing: 1 of 2 starts timed something, such as {"benchmarks": 3}')
    assert said[3].endswith("1.100, wanted 1.02")
    assert said[-1].endswith("0.900, wanted 0.97")
    assert "failed" not in "".join(frozen_report.lines([*lines, start("default 1")]))


def test_a_digest_ignores_paths_and_addresses_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    code = f"# AOT ID: ['3_inference']\n# kernel path: {tmp_path}/ab/c.py\ncall(<f at 0x7f12>)\n"
    assert frozen_program.normalised(code) == "\n# kernel path: CACHE/ab/c.py\ncall(<f>)\n"


@pytest.mark.slow
def test_the_whole_tool_on_a_cpu(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(frozen, "visible_gpus", lambda: [])
    frozen.main(options(tmp_path, starts=2))
    said = capsys.readouterr().out
    assert "2 frozen starts on 1 GPUs, 1 pieces, one digest each" in said
    assert "timing: 0 of 2 starts timed something; 0 wrote a table, 0 had errors; 1 identity" in said
    lines = json_lines(tmp_path / "lines.jsonl")
    assert [line["kind"] for line in lines] == ["freeze", *["start"] * 4, *["gain"] * 2]
    frozen.main(options(tmp_path, starts=2))
    assert len(json_lines(tmp_path / "lines.jsonl")) == len(lines), "a second run has nothing left to do"
