"""benchmarks/programs: the records, resuming, turns on a GPU, and tiny versions that need torch alone."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.programs import choices, figures, locks, measure, processes
from benchmarks.programs.program import Program
from benchmarks.programs.suite import chosen, suite
from benchmarks.programs.ways import UNSET, WAYS, base_environment
from gemmdb.errors import InputError

PLAIN = ("gpt-fast-int8-1", "train-blocks-checkpointed")
"""Programs without a further package: one of int8 decoding, one of training."""


def options(**given: object) -> argparse.Namespace:
    """The options of `measure` with their defaults."""
    parser = argparse.ArgumentParser()
    measure.arguments(parser)
    found = parser.parse_args(["--out", str(given.pop("out", "unused"))])
    vars(found).update(given)
    return found


def test_the_same_kernel_is_compared_with_the_same_choice_of_blocks(tmp_path: Path) -> None:
    """Also if it has another number in its graph."""
    source = "import triton\n\ndef triton_poi_fused_{}(x):\n    {}\n\nmeta = 'triton_poi_fused_{}'\n"
    kernels = {
        "ours/ab/first.py": ("gelu_0", "a", "1"), "ours/ab/second.py": ("add_1", "b", "2"),
        "theirs/ab/second.py": ("add_0", "b", "3"), "theirs/cd/own.py": ("add_1", "c", "4"),
        "theirs/cd/untried.py": ("gelu_2", "a", None), "theirs/cd/graph.py": ("", "", None),
    }  # fmt: skip
    for name, (kernel, body, choice) in kernels.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.format(kernel, body, kernel) if kernel else "a graph")
        if choice:
            choices._choice_of(path).write_text(choice)
    choices.share(tmp_path / "ours", [tmp_path / "theirs"])
    found = {name: path.read_text() for name in kernels if (path := choices._choice_of(tmp_path / name)).exists()}
    assert found == {
        "ours/ab/first.py": "1", "ours/ab/second.py": "2", "theirs/ab/second.py": "2", "theirs/cd/own.py": "4",
        "theirs/cd/untried.py": "1",
    }  # fmt: skip
    choices.forget(tmp_path / "ours")
    assert {path.parts[-3] for path in tmp_path.rglob("*.best_config")} == {"theirs"}


def test_the_same_gemm_is_padded_alike(tmp_path: Path) -> None:
    """Padded is what the first way pads. Who chose otherwise is compiled anew; what only one asked about stays."""
    ours, other, alike = (tmp_path / name for name in ("ours", "other", "alike"))
    known = {ours: {"mm": True, "mm time": 2.5}, other: {"mm": False, "addmm": True}, alike: {"mm": True}}
    for cache, found in known.items():
        for folder in ("cache", "fxgraph", "aotautograd"):
            (cache / folder).mkdir(parents=True)
        (cache / "cache" / "hash").write_text(json.dumps({"system": {}, "cache": found}))
    assert choices.share_paddings(ours, [other, alike]) == [other]
    assert json.loads((other / "cache" / "hash").read_text()) == {"system": {}, "cache": {"mm": True, "addmm": True}}
    assert sorted(path.name for path in other.iterdir()) == ["cache"]
    assert (alike / "fxgraph").exists()


def test_a_program_keeps_its_own_arguments_of_compile_and_max_autotune_its_graphs() -> None:
    program = suite()["gpt-fast-int8-1"]
    assert WAYS["gemmdb"].options(program) == {"mode": "reduce-overhead", "fullgraph": True}
    assert WAYS["max-autotune"].options(program) == {"mode": "max-autotune", "fullgraph": True}
    plain = replace(program, options={})
    assert WAYS["max-autotune"].options(plain) == {"mode": "max-autotune-no-cudagraphs"}


def test_gemmdb_is_a_backend_beside_other_ways() -> None:
    plain = replace(suite()["train-blocks"], options={"fullgraph": True})
    beside = {name: replace(way, beside=True).options(plain) for name, way in WAYS.items()}
    assert beside["default"] == {"fullgraph": True}
    assert beside["gemmdb"] == {"fullgraph": True, "backend": "gemmdb"}
    assert beside["gemmdb-aten"]["options"] == {"gemmdb.on_miss": "aten"}
    assert not beside["gemmdb-unconfirmed"]["options"]["gemmdb.policy"].confirm


def test_gemmdb_is_enabled_while_a_program_s_own_backend_compiles_beside_other_ways() -> None:
    from gemmdb.inductor.entry import active

    def backend(graph: object, inputs: object, **how: object) -> object:
        return graph, inputs, how, active.requested()

    own = replace(suite()["engine-1"], options={"backend": backend})
    found = replace(WAYS["gemmdb-aten"], beside=True).options(own)
    graph, inputs, how, session = found["backend"]("graph", "inputs", mode="m")
    assert (graph, inputs, how) == ("graph", "inputs", {"mode": "m"})
    assert session is not None
    assert session.policy.on_miss == "aten"
    assert active.requested() is None
    assert replace(WAYS["default"], beside=True).options(own) == {"backend": backend}


def test_a_measuring_process_has_no_settings_of_its_user() -> None:
    theirs = {**dict.fromkeys(UNSET, "x"), "GEMMDB_TABLES": "kept", "CUDA_VISIBLE_DEVICES": "7"}
    environ = base_environment(theirs, "1", compilers=3)
    assert environ["GEMMDB_TABLES"] == "kept"
    assert environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert environ["TORCHINDUCTOR_COMPILE_THREADS"] == "3"
    assert not set(UNSET) & set(environ)


def test_places_have_processors_of_their_own() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.sched_getaffinity", lambda of: {7, 2, 3, 5, 4})
        assert [place.cpus for place in processes.places("cuda", ["0", "1"], 1, 2)] == [(2, 3), (4, 5)]
        assert [place.cpus for place in processes.places("cuda", ["0", "1"], 2, 0)] == [()] * 4
        with pytest.raises(InputError, match="3 programs at once need 6 processors, not 5"):
            processes.places("cpu", [""], 3, 2)


def test_a_pinned_process_has_the_threads_of_its_processors() -> None:
    """Unless something imported torch before, which counts them then."""
    pytest.importorskip("torch")
    cpu = min(os.sched_getaffinity(0))
    program = (
        "import os; from benchmarks.programs import measure, processes; "
        f"processes.pin('{cpu}'); import torch; print(os.sched_getaffinity(0), torch.get_num_threads())"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    assert found == f"{{{cpu}}} 1\n"


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], dict[str, list[object]]]:
    """(the ways that are compiled, in order; what the processes return, by way: seconds, or a reason why not)."""
    seen: list[str] = []
    replies: dict[str, list[object]] = {}

    def in_process(task: str, program: Program, names: list[str], *rest: object) -> dict[str, object]:
        assert task == "cold"
        (name,) = names
        seen.append(name)
        found = replies[name].pop(0)
        if isinstance(found, str):
            return {"failure": found}
        return {"cold_s": found, "enabling_s": 0.1, "waited_s": 2.0, "stats": {"hits": len(seen)}}

    monkeypatch.setattr(processes, "in_process", in_process)
    return seen, replies


def test_cold_compiles_alone_take_turns_and_their_median_counts(compiles) -> None:
    seen, replies = compiles
    replies |= {"default": [3.0, 9.0, 4.0], "gemmdb": [5.0, 8.0, 6.0]}
    given = options(cold=True, repeat=3, cpus=2)
    found = measure.measured(chosen("train-blocks")[0], ["default", "gemmdb"], processes.Place("cpu", ""), given)
    assert seen == ["default", "gemmdb", "gemmdb", "default", "default", "gemmdb"]
    assert (found["cold"], found["cpus"], "taken" in found) == (True, 2, False)
    seconds = {name: (facts["cold_s"], facts["cold_all"]) for name, facts in found["ways"].items()}
    assert seconds == {"default": (4.0, [3.0, 9.0, 4.0]), "gemmdb": (6.0, [5.0, 8.0, 6.0])}
    assert found["ways"]["gemmdb"]["stats"] == {"hits": 6}
    assert figures.summary(found)["cold_s"] == {"default": 4.0, "gemmdb": 6.0}


def test_a_way_that_fails_cold_is_not_compiled_again(compiles) -> None:
    seen, replies = compiles
    replies |= {"default": [3.0, 4.0], "gemmdb": ["out of memory"]}
    given = options(cold=True, repeat=2)
    found = measure.measured(chosen("train-blocks")[0], ["default", "gemmdb"], processes.Place("cpu", ""), given)
    assert seen == ["default", "gemmdb", "default"]
    assert found["ways"]["gemmdb"] == {"failure": "out of memory"}
    assert found["ways"]["default"]["cold_s"] == 3.5


def test_only_cold_compiles_are_repeated() -> None:
    with pytest.raises(InputError, match="only cold compiles are repeated"):
        measure.main(options(repeat=2))


def test_only_one_process_times_on_a_gpu(tmp_path: Path) -> None:
    path, order = tmp_path / "gpu.lock", []

    def later() -> None:
        with locks.alone(path):
            order.append("later")

    with locks.alone(path):
        second = threading.Thread(target=later)
        second.start()
        second.join(0.2)
        order.append("first")
    second.join(10)
    assert order == ["first", "later"]


def test_a_process_that_fails_costs_one_way_and_says_why(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = replace(suite()["gpt-fast-int8-1"], name="unknown")
    place = processes.Place("cpu", "")
    found = processes.in_process("cold", program, ["default"], place, tmp_path, options())
    assert found["failure"] == "cold: exit 1: KeyError: 'unknown'"
    found = processes.in_process("cold", program, ["default"], place, tmp_path, options(timeout=0.1))
    assert found["failure"].startswith("cold: no answer within 0 s; it was in ")


def test_a_process_that_hangs_says_where(tmp_path: Path) -> None:
    script, log = tmp_path / "hangs.py", tmp_path / "log"
    script.write_text(
        "import faulthandler, signal, time\nfaulthandler.register(signal.SIGUSR1)\n"
        "def waits():\n    print('ready', flush=True)\n    time.sleep(60)\nwaits()\n"
    )
    with log.open("wb") as output, subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=output
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        found = processes.doing(child, log)
        child.kill()
    assert re.fullmatch(r"waits \(hangs.py:[45]\), <module> \(hangs.py:6\)", found)


def test_suspects_are_the_longest_gemms_that_aten_does_not_solve() -> None:
    pytest.importorskip("torch")
    from benchmarks.programs.blame import suspects

    products = [
        {"config": "aten:default", "expected_us": 99.0, "count": 9},
        {"config": "triton:gemv", "expected_us": 5.0, "count": 3},
        {"config": "triton:tile", "expected_us": 10.0, "count": 1},
        {"config": "triton:narrow", "expected_us": None, "count": 7},
    ]
    assert [one["config"] for one in suspects(products, 2)] == ["triton:gemv", "triton:tile"]
    assert len(suspects(products, 9)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_a_tiny_version_is_right_with_gemmdb(name: str) -> None:
    pytest.importorskip("torch")
    from kit.translation_unit import compiled_at_once

    from benchmarks.programs.check import checked

    with compiled_at_once():
        found = checked(suite()[name], "cpu")
    assert "gemmdb" in found, found


def test_a_cold_compile_begins_without_gemmdb() -> None:
    pytest.importorskip("torch")
    program = (
        "import sys, benchmarks.programs.worker; print([m for m in sys.modules if m.startswith('gemmdb.inductor')])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"[]\n"
