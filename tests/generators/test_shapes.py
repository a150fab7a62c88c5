"""Presets and shapes files."""

import functools
import hashlib
import json
import re
from pathlib import Path

import pytest
from kit.devices import H200

from gemmdb.errors import InputError
from gemmdb.generators import shapes
from gemmdb.generators.effort import named
from gemmdb.generators.measure.cuda.space import CudaSpace
from gemmdb.key import representatives
from gemmdb.key.problem import Problem
from gemmdb.workload import entries


@functools.cache
def preset(name, kind="cuda"):
    return tuple(shapes.load(name, kind))


@pytest.fixture
def load(tmp_path):
    """A function that loads a file with this text."""

    def write(text, name="shapes.jsonl"):
        path = tmp_path / name
        path.write_text(text)
        return shapes.load(str(path), "cpu")

    return write


PRESETS = {
    "cpu-llm": (136, "0eec17e8e257493d"), "cpu-quick": (9, "5d5a07ae71928d7a"),
    "dense": (6626, "08b323f86237548e"), "grid": (699, "c8f763759974a92e"),
    "h200": (5680, "415ea69464e5aecc"), "h200-bmm": (593, "5f4b386fdce3188b"),
    "h200-epilogues": (815, "6223074bb1664fe4"), "h200-grouped": (803, "2f6a08089782c3ed"),
    "h200-int4": (1278, "73c2bb0770b934ee"), "h200-scaled": (1000, "768c9a888bd3c391"),
    "llm": (2768, "3584833255862c52"), "llm-dense": (107756, "02753d39b51d170a"),
    "modelled": (1089, "5b0a43895f688ee9"), "odd": (1956, "63cee32b21f22b14"),
    "residual": (1038, "e3555b8b0a1e374c"), "vision": (2352, "06a728795e55487e"),
}  # fmt: skip
"""How many problems each preset has at least, and a digest of these. Tables were built from them, and their reports
name them by their places: problems may be added at the end only. Each prefix of `dense` and of an `h200` preset is a
sample of all."""


@pytest.mark.parametrize("name", shapes.presets())
def test_a_preset_keeps_the_problems_that_tables_were_built_from(name):
    problems, (count, digest) = preset(name), PRESETS[name]
    assert len(problems) == len(set(problems)) >= count
    texts = "\n".join(problem.text for problem in problems[:count])
    assert hashlib.sha256(texts.encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith(("dense", "h200"))])
def test_the_problems_of_a_table_can_be_measured(name):
    problems, space, effort = preset(name), CudaSpace(), named("standard", "cuda")
    assert all(representatives.rejection(problem) is None for problem in problems)
    assert max(problem.bytes for problem in problems) <= 5e9  # All experts of the largest layers.
    for problem in problems[:: len(problems) // 50]:
        found = space.candidates(problem, H200, effort)
        assert len(found) >= 4, problem.text
        assert not any(one.rejected for one in found), problem.text


def test_the_default_of_a_cpu_is_small_and_covers_the_ops():
    problems = shapes.load(None, "cpu")
    assert problems == shapes.load("cpu-quick", "cpu")
    assert {problem.op for problem in problems} == {"mm", "addmm", "int_mm", "mixed_mm"}
    assert len(problems) <= 12


def test_the_default_of_a_gpu_covers_all_backends_and_ops():
    problems = shapes.load(None, "cuda")
    assert {problem.op for problem in problems} == {"mm", "addmm", "int_mm", "mixed_mm"}
    assert (named(None, "cuda").name, named(None).name) == ("standard", "quick")


def test_lists_stand_for_every_combination(load):
    problems = load('{"op": ["mm", "addmm"], "m": [1, 16], "n": 64, "k": [32, 64], "dtype": "fp32"}')
    assert len(problems) == 8
    assert Problem.gemm("addmm", m=16, n=64, k=32, dtype="fp32") in problems


def test_operand_sizes(load):
    assert load('{"op": "mm", "a": [16, 32], "b": [32, 64]}') == [Problem.gemm("mm", m=16, n=64, k=32)]


def test_a_json_list_an_object_and_lines_are_the_same(load):
    items = [{"op": "mm", "m": 1, "n": 8, "k": 8}, {"op": "int_mm", "m": 2, "n": 8, "k": 8}]
    by_line = load("\n".join(map(json.dumps, items)))
    assert len(by_line) == 2
    assert load(json.dumps(items)) == by_line
    assert load(json.dumps({"description": "x", "problems": items})) == by_line
    assert load(json.dumps({"problems": items}, indent=2), "pretty.json") == by_line
    assert load(json.dumps(items[0])) == by_line[:1]


def test_a_workload_is_a_shapes_file(tmp_path):
    problem = Problem.gemm("mm", m=1, n=8, k=8)
    path = tmp_path / "workload.jsonl"
    entries.append(path, [entries.Entry(problem), entries.Entry(problem, 3)])
    with path.open("a") as file:
        file.write('{"uncovered": "bmm", "count": 1}\n')
    assert shapes.load(str(path), "cpu") == [problem]


def test_gemms_of_batches_are_listed_with_their_batch(tmp_path):
    path = tmp_path / "shapes.jsonl"
    path.write_text('{"op": "bmm", "batch": [8, 64], "m": 1, "n": 16, "k": 32, "layout": "nn"}\n')
    wanted = [Problem.gemm("bmm", batch=batch, m=1, n=16, k=32, layout="nn") for batch in (8, 64)]
    assert shapes.load(str(path), "cuda") == wanted
    assert shapes.select(wanted, ("bmm",), ("bf16",)) == wanted
    assert shapes.select(wanted, ("mm",), ()) == []


def test_scales_and_accumulation_are_keywords(tmp_path):
    path = tmp_path / "shapes.json"
    path.write_text('{"op": "scaled_mm", "m": 1, "n": 16, "k": 32, "scales": ["tensor", "row"], "fast_accum": true}')
    wanted = [Problem.gemm("scaled_mm", m=1, n=16, k=32, scales=kind, fast_accum=True) for kind in ("tensor", "row")]
    assert shapes.load(str(path), "cpu") == wanted
    assert shapes.select(wanted, ("scaled_mm",), ("fp8_e4m3",)) == wanted
    assert shapes.select(wanted, (), ("bf16",)) == []


GOOD = '{"op": "mm", "m": 1, "n": 8, "k": 8}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + '{"op": "mm", "a": [16, 32], "b": [31, 64]}', r":2: K differs: a is \[16, 32\] and b is \[31, 64\]"),
        (GOOD + '\n{"op": "baddbmm", "m": 1, "n": 8, "k": 8}', ":3: unknown op 'baddbmm'"),
        (GOOD + '\n{"op": "mm", "batch": 2, "m": 1, "n": 8, "k": 8}', ":3: mm: only bmm takes a batch"),
        (GOOD + '\n{"op": "mm", "scales": "row", "m": 1, "n": 8, "k": 8}', ":3: mm: only scaled_mm and grouped_mm"),
        (GOOD + '\n{"op": "scaled_mm", "scales": 1, "m": 1, "n": 8, "k": 8}', ":3: scales must be of type str"),
        (
            GOOD + '\n{"op": "scaled_mm", "fast_accum": 1, "m": 1, "n": 8, "k": 8}',
            ":3: fast_accum must be of type bool",
        ),
        (GOOD + '\n{"op": "scaled_mm", "layout": "nn", "m": 1, "n": 8, "k": 8}', ":3: scaled_mm: B lies by columns"),
        (GOOD + '\n{"op": "bmm", "batch": true, "m": 1, "n": 8, "k": 8}', ":3: batch must be of type int"),
        (GOOD + '{"op": "mm", "m": 1, "n": 8, "k": 8, "dtype": "fp12"}', ":2: unknown dtype 'fp12'"),
        (GOOD + '{"op": "mm", "m": 1, "n": 8}', ":2: k is missing"),
        (GOOD + '{"m": 1, "n": 8, "k": 8}', ':2: a problem has an "op"'),
        (GOOD + '{"op": "mm", "m": "1", "n": 8, "k": 8}', ":2: m must be of type int"),
        (GOOD + '{"op": "mm", "m": true, "n": 8, "k": 8}', ":2: m must be of type int"),
        (GOOD + '{"op": "mm", "m": -1, "n": 8, "k": 8}', ":2: mm: m must be an integer of at least 0"),
        (GOOD + '{"op": "mm", "m": [], "n": 8, "k": 8}', ":2: stands for 0 problems"),
        (GOOD + '{"op": "mm", "m": 1, "n": 8, "k": 8, "rows": 2}', ":2: unknown field 'rows'"),
        (GOOD + '{"op": "mm", "m": 2, "a": [16, 32], "b": [32, 64]}', ":2: m is 2, but a is"),
        (GOOD + '{"op": "mm", "a": 3, "b": [32, 64]}', ":2: a and b must be matrix sizes"),
        (GOOD + '{"problem": "mm m=1"}', ":2: malformed problem"),
        (GOOD + "{", ":2: not JSON"),
        (GOOD + "[1]", ":2: a line must be a JSON object"),
        ('[\n  {"op": "mm", "m": 1, "n": 8, "k": 8},\n  {"op": "mmm", "m": 1, "n": 8, "k": 8}\n]', ":3: unknown op"),
        ('{"problems": [\n\n 7]}', ":3: a problem must be a JSON object"),
        ("[\n1,,2]", ":2: not JSON"),
        ('{"problems": 3}', "must contain a list of problems"),
        ("", "contains no problems"),
        ("null", "contains no problems"),
        ("[" * 100000, "nested too deeply"),
        ("hello", ":1: not JSON"),
    ],
)
def test_bad_files_are_named_with_their_line(load, text, message):
    with pytest.raises(InputError, match=message) as caught:
        load(text)
    assert "\n" not in str(caught.value)


def test_the_line_of_an_item_is_counted_from_the_item_before():
    class Text(str):
        scanned = 0

        def count(self, what, begin=0, end=None):
            Text.scanned += (len(self) if end is None else end) - begin
            return super().count(what, begin, end)

    text = Text(json.dumps([{"op": "mm", "m": m + 1, "n": 8, "k": 8} for m in range(300)], indent=1))
    found = list(shapes._document(text, "shapes.json"))
    assert [where for where, _ in found[:2]] == ["shapes.json:2", "shapes.json:8"]
    assert text.splitlines()[int(found[-1][0].rpartition(":")[2])].strip() == '"op": "mm",'
    assert Text.scanned <= len(text)


@pytest.mark.parametrize("what", ["folder", "binary"])
def test_unreadable_files(tmp_path, what):
    path = tmp_path / what
    path.mkdir() if what == "folder" else path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=f"cannot read {path}"):
        shapes.load(str(path), "cpu")


def test_select():
    problems = shapes.load("cpu-quick", "cpu")
    chosen = shapes.select(problems, ["mm"], ["bf16"])
    assert chosen
    assert {(p.op, p.a.dtype) for p in chosen} == {("mm", "bf16")}
    assert shapes.select(problems, [], []) == problems


def test_the_example_of_the_docs_loads(load):
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "build.md").read_text()
    (example,) = re.findall(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(load(example)) == 13
