"""`gemmdb compare` on a script of one's own."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from gemmdb.advice import Act
from gemmdb.cli.compare import say_gemms, steps
from gemmdb.errors import InputError
from gemmdb.inductor.entry.comparison import Comparison
from gemmdb.outcome import DISTURBED

SCRIPT = """
import torch
from beside import SIZE
model = torch.nn.Linear(SIZE, SIZE).eval()
inputs = (torch.randn(8, SIZE),)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("SIZE = 64\n")
    path = tmp_path / "model.py"
    path.write_text(SCRIPT)
    return path


def test_a_model_is_compared(gemmdb, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = gemmdb("compare", str(script), "--calls", "5", "--json")
    found = json.loads(done.out)
    assert (done.code, found["verdict"]) == (0, "same kernels")
    low, high = found["interval"]
    assert low <= found["speedup"] <= high
    assert found["speedup"] == pytest.approx(found["default_us"] / found["gemmdb_us"])
    assert found["error"] < 1e-4
    ((problem, config),) = found["configs"].items()
    assert problem.startswith("addmm m=8 n=64 k=64 ")
    assert config == "aten:default"
    assert [(one["problem"], one["config"], one["count"]) for one in found["products"]] == [(problem, config, 1)]
    assert "torch._inductor.config.freezing = True" in done.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model = 1\ninputs = ()", "must set a callable `model`"),
        ("raise ValueError('it ran')\nmodel = print", "never sets `inputs`, which `gemmdb compare` calls"),
        ("raise ValueError('it ran')\nclass Model: pass", "never sets `model`, `inputs`"),
        ("def model(: pass", "SyntaxError"),
        ("model, inputs = print, 3", "a tuple `inputs`"),
        ("raise ValueError('mine')\nmodel, inputs = print, ()", "ValueError: mine"),
        ("from os import *\nraise SystemExit(0)", "SystemExit: 0"),
        (SCRIPT.replace("randn(8, SIZE)", "randn(8, 3)"), "the model fails on its inputs: RuntimeError: mat1 and mat2"),
        (None, "no such file"),
    ],
)
def test_a_script_that_does_not_help(gemmdb, script: Path, text: str | None, message: str) -> None:
    if text is None:
        script.unlink()
    else:
        script.write_text(text)
    gemmdb("compare", str(script)).refused(message)


def test_a_folder_is_no_script(gemmdb, tmp_path: Path) -> None:
    gemmdb("compare", str(tmp_path)).refused(f"{tmp_path} is a folder; name a Python file")


def test_a_wrong_option_is_refused_before_the_script_runs(gemmdb, script: Path) -> None:
    script.write_text("raise ValueError('it ran')\nmodel, inputs = print, ()")
    gemmdb("compare", str(script), "--wait", "never").refused("--wait 'never': a time such as 90s, 10m or 1h30m")


def test_nothing_is_compared_while_gemmdb_is_disabled(gemmdb, script: Path, monkeypatch) -> None:
    """Both sides would be default mode."""
    monkeypatch.setenv("GEMMDB_DISABLE", "1")
    script.write_text("raise ValueError('it ran')\nmodel, inputs = print, ()")
    gemmdb("compare", str(script)).refused("nothing can be compared while GEMMDB_DISABLE is set; unset it")
    from gemmdb.inductor.entry import compare

    with pytest.raises(InputError, match="nothing can be compared while GEMMDB_DISABLE is set"):
        compare.compare(abs, 1)


def test_a_model_may_import_what_lies_beside_it_when_it_is_called(gemmdb, script: Path) -> None:
    lines = [
        "import sys, torch",
        "sys.path.insert(0, 'elsewhere')",
        "def model(x):",
        "    from beside import SIZE",
        "    return x + SIZE",
        "inputs = (torch.ones(4),)",
    ]
    script.write_text("\n".join(lines))
    done = gemmdb("compare", str(script), "--calls", "5")
    assert done.code in (0, 1)
    facts = {line.partition("  ")[0]: line.partition("  ")[2].strip() for line in done.out.splitlines()}
    assert facts["gain"].startswith("none, both sides run the same kernels")
    assert facts["kernels"] == "no GEMM in the compiled graphs"
    assert "outputs  identical" in done.out
    assert str(script.parent) not in sys.path
    sys.path.remove("elsewhere")


def test_a_model_may_be_a_sequence_of_modules_that_the_script_defines(gemmdb, script: Path) -> None:
    """Dynamo imports their module by its name, because the frame that it traces is torch's."""
    lines = [
        "import torch",
        "class Block(torch.nn.Module):",
        "    def forward(self, x):",
        "        return torch.nn.functional.gelu(x) @ WEIGHT",
        "WEIGHT = torch.eye(16)",
        "model, inputs = torch.nn.Sequential(Block(), Block()), (torch.ones(4, 16),)",
    ]
    script.write_text("\n".join(lines))
    done = gemmdb("compare", str(script), "--calls", "5")
    assert (done.code, "outputs" in done.out) == (0, True), done.err
    assert "gemmdb_compare" not in sys.modules


def test_a_difference_with_aten_on_both_sides_is_not_gemmdbs(gemmdb, script: Path, monkeypatch) -> None:
    """As for `_int_mm` with one row on a CPU, whose result is arbitrary."""
    import torch

    from gemmdb.inductor.entry import compare

    outputs = iter([torch.tensor([value]) for value in (1.0, 2.0, 3.0)] * 2)
    monkeypatch.setattr(compare, "output_of", lambda function, inputs: next(outputs))
    found = json.loads(gemmdb("compare", str(script), "--calls", "5", "--json").out)
    assert (found["error"], found["repeated"]) == (1.0, 2.0)
    text = gemmdb("compare", str(script), "--calls", "5").err
    assert "ATen runs every GEMM on both sides" in text
    assert "two calls of default mode differ by 2 " in text


def compared(gain: float, *products: dict[str, object]) -> Comparison:
    configs = {str(one["problem"]): str(one["config"]) for one in products}
    return Comparison(100.0, 100.0 / gain, 0.0, configs, {}, products=products, interval=(gain - 0.05, gain + 0.05))


SERVED = {"problem": "a", "rung": "exact", "config": "cpp:packed_gemm", "outcome": "table", "why": ""}
ATEN = {"problem": "b", "rung": "near", "config": "aten:default", "why": ""}
MISSED = {**ATEN, "rung": "aten", "outcome": "ATen (nothing known)"}


def test_what_compare_records_is_measured() -> None:
    """The script itself compiles nothing: `gemmdb tune -- python model.py` recorded nothing."""
    (step,) = steps(compared(1.0, MISSED), Path("my model.py"), 50)
    assert step.paste == (
        "gemmdb record --out 'my model-compare.jsonl' -- gemmdb compare 'my model.py'"
        " && gemmdb build --arch native --shapes 'my model-compare.jsonl'"
    )


def test_what_other_programs_disturbed_is_measured_again_on_an_idle_machine() -> None:
    """It said that no table answers, of a table that has only disturbed times."""
    (step,) = steps(compared(1.0, {**MISSED, "rung": "exact", "why": DISTURBED}), Path("model.py"), 50)
    assert step.act is Act.IDLE
    assert step.paste.endswith("gemmdb build --arch native --shapes model-compare.jsonl")


def test_the_line_to_paste_adds_to_no_workload_that_is_there(tmp_path: Path, monkeypatch) -> None:
    """It would count every GEMM twice."""
    monkeypatch.chdir(tmp_path)
    for name in ("model.jsonl", "model-compare.jsonl"):
        Path(name).touch()
    (step,) = steps(compared(1.0, MISSED), Path("model.py"), 50)
    assert step.paste.startswith("gemmdb record --out model-compare-2.jsonl ")
    assert step.paste.endswith(" --shapes model-compare-2.jsonl")


@pytest.mark.parametrize(("outcome", "act"), [
    ("ATen (measured best)", Act.NOTHING), ("ATen (predicted best)", Act.CHECK),
])  # fmt: skip
def test_what_is_advised_is_of_the_outcomes_that_it_prints(outcome: str, act: Act) -> None:
    """A GEMM of a comparison has no evidence: whether a compile timed ATen is known from its outcome alone."""
    found = compared(1.0, {**ATEN, "outcome": outcome})
    assert [one.act for one in steps(found, Path("model.py"), 50)] == [act]


def test_a_gain_that_may_be_chance_is_timed_more_often() -> None:
    found = compared(1.02, SERVED)
    assert found.verdict == "no difference"
    (step,) = steps(found, Path("model.py"), 50)
    assert step.paste == "gemmdb compare model.py --calls 200"
    assert "may be chance" in step.text


def test_a_gain_of_one_gemm_is_claimed_only_if_it_is_certain(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"problem": "a", "count": 1, "outcome": "table", "config": "cpp:packed_gemm", "expected_us": 10.0}
    gains = {"speedup_vs_aten": 1.25, "spread": 0.02}, {"speedup_vs_aten": 1.02, "evidence": {"spread": 0.05}}
    aten = {"speedup_vs_aten": 1.0, "spread": 0.05, "outcome": "ATen (measured best)"}
    say_gemms([row | one for one in (*gains, aten)], wide=False)
    text = capsys.readouterr().out
    assert "1.25x" in text
    assert "no difference" in text
    assert "1.02x" not in text
    assert "1.00x" not in text
