"""Wrong calls: each is one line on stderr that names the input and the remedy, and leaves every file as it was."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from gemmdb.generators.files.pack import pack
from gemmdb.kernels import cutlass
from gemmdb.key import epilogue
from gemmdb.key.problem import Problem
from gemmdb.table.catalog import shipped_tables

H200 = str(shipped_tables() / "sm90-nvidia-h200.db")
URL = "https://example.com:8443/tables/h200.db"
EMPTY = Problem.gemm("mm", m=0, n=8, k=8).text

# A call, then the words of its line. ONE is a problem of mm; lookup and explain take the same flags.
PROBLEMS = """
--op conv --m 1 --n 1 --k 1 | unknown op 'conv'
--op mm --m -1 --n 1 --k 1 | m must be
--op mm --m x --n 1 --k 1 | --m
--op mm --m=abc --n 1 --k 1 | '--m' | 'abc' | --help
--op mm --m abc --n 1 --k 1 | '--m' | 'abc' | --help
--op mm --m 1 --n 1 | --k
--op mm --m 1 | --n is missing | PROBLEM
 | --op is missing | PROBLEM
--op mm --m 99999999999 --n 1 --k 1 | m must be
--op mm --m 0 --n 64 --k 64 | --m 0: there is nothing to compute
--op mm --m 1 --n 0 --k 64 | --n 0: there is nothing to compute
--op mm --m 1 --n 64 --k 0 | --k 0: there is nothing to compute
--op bmm --m 1 --n 64 --k 64 --batch 0 | --batch 0: there is nothing to compute
ONE --dtype fp7 | unknown dtype 'fp7'
ONE --dtype float8 | unknown dtype 'float8' | did you mean 'fp8_e4m3'?
ONE --layout xy | unknown layout 'xy'
ONE --bias 1d | bias
--op int_mm --m 1 --n 1 --k 1 --dtype bf16 | cannot multiply
ONE --fusion soft | 'soft'
ONE --fusion relu | no such fusion: 'relu' | class pointwise; | known: none, scale, GRAMMAR
ONE --fusion gelu | no such fusion: 'gelu' | class pointwise:math; | known: none, scale, GRAMMAR
ONE --fusion SiLU | no such fusion: 'SiLU' | class pointwise:math; | known: none, scale, GRAMMAR
ONE --l2 warm | unknown l2 state 'warm'
ONE --device A --arch cpu | exclude each other
ONE --device Nonesuch | Nonesuch
ONE --device H200 | unknown device 'H200'; did you mean 'NVIDIA H200'
ONE --device 'h100 pcie' | unknown device 'h100 pcie'; did you mean 'NVIDIA H100 PCIe'
ONE --device 'nvidia h20O' | unknown device 'nvidia h20O'; did you mean 'NVIDIA H20'
ONE --device sm9 | unknown device 'sm9'; did you mean 'sm90'
ONE --device= | --device is empty
ONE --arch= | --arch is empty
ONE --weight-dtype int8 | --weight-dtype is for mixed_mm and scaled_mm only
--op mixed_mm --m 1 --n 1 --k 1 --weight-dtype= | unknown dtype ''
--op mixed_mm --m 1 --n 1 --k 1 --weight-dtype fp32 | cannot multiply
ONE --frob | --frob
ONE --batch 2 | only bmm takes a batch
--op bmm --m 1 --n 1 --k 1 --batch -2 | batch must be
ONE --scales row | only scaled_mm and grouped_mm of fp8 have scales
ONE --fast-accum | only scaled_mm and grouped_mm of fp8 have scales
--op scaled_mm --m 1 --n 16 --k 16 --scales= | one of the kinds tensor, row, block, got ''
--op mixed_mm --m 1 --n 8 --k 128 --packing gptq | packing=gptq has numbers of int4, got int8
--op mixed_mm --m 1 --n 8 --k 128 --weight-dtype int4 --group 100 | groups have 32, 64, 128, 256
--op mixed_mm --m 1 --n 8 --k 128 --weight-dtype int4 --packing marlin | known: tinygemm2, tinygemm4
--op scaled_mm --m 1 --n 16 --k 16 --scales column | one of the kinds tensor, row, block
--op scaled_mm --m 1 --n 16 --k 16 --dtype bf16 | cannot multiply bf16 by bf16
--op scaled_mm --m 1 --n 16 --k 16 --layout nn | B lies by columns in memory
--op bmm --m 1 --n 1 --k 1 --batch 2 --bias 1d | bias
workload.jsonl | workload.jsonl is a file | workload.jsonl:1
workload.jsonl:9 | workload.jsonl:9 | no such line | its last line is workload.jsonl:4
workload.jsonl:4 | workload.jsonl:4 | gemmdb does not support bmm
empty.jsonl:1 | empty.jsonl:1 | it holds no lines
notes.txt:1 | notes.txt:1 | not JSON
nonesuch.jsonl:1 | cannot read nonesuch.jsonl
nonesuch.jsonl | 'nonesuch.jsonl' | WORKLOAD.jsonl:LINE
mm | 'mm' | WORKLOAD.jsonl:LINE
'mm m=16 n=4096' | 'mm m=16 n=4096' | paste all of the text
'{}' | PROBLEM | "problem"
'EMPTY' | m=0: there is nothing to compute
mine.db:1 | mine.db is a table, not a workload | gemmdb show mine.db
workload.jsonl:2 --m 4 | --m and PROBLEM exclude each other
workload.jsonl:2 --constant-weight | --constant-weight and PROBLEM exclude each other
workload.jsonl:2 --l2 warm | unknown l2 state 'warm'
workload.jsonl:2 --device A --arch cpu | exclude each other
"""
CALLS = f"""
frobnicate | frobnicate
--frob | --frob
record | COMMAND
record -- no-such-program | no-such-program
record --out . -- true | .
record --out missing/workload.jsonl -- true | missing/workload.jsonl
record --out notes.txt -- true | notes.txt
build --gpus many | --gpus
build --arch native --shapes nonesuch | nonesuch
build --arch native --ops conv | unknown op 'conv'
build --arch native --dtypes fp7 | unknown dtype 'fp7'
build --arch native --effort heroic | unknown effort 'heroic'
build --arch sm999 | sm999
build --arch sm9 | sm9 | did you mean 'sm90'?
build --arch cuda | cuda | this machine
build --arch native --gpus 0 | --gpus
build --arch native --minutes 0 | --minutes
build --arch native --minutes nan | --minutes
build --arch cpu --shapes notes.txt | notes.txt:1 | name a preset, a shapes file or a workload of `gemmdb record`
build --arch cpu --shapes . | .
build --arch cpu --shapes empty.jsonl | empty.jsonl contains no problems | gemmdb record
build --arch cpu --shapes uncovered.jsonl | uncovered.jsonl contains no problems that gemmdb can build
build --arch cpu --shapes mine.db | mine.db is a table, not a workload | gemmdb show mine.db
build --arch cpu --shapes one.jsonl --ops int_mm | --ops
build --arch cpu --shapes one.jsonl --out . | .
build --arch cpu --shapes one.jsonl --out notes.txt | notes.txt
build --arch cpu --shapes one.jsonl --allow '(' | --allow '(' | not a regular expression
build --arch cpu --shapes one.jsonl --deny '(' | --deny '(' | not a regular expression
coverage w --jsn | --jsn
coverage empty.jsonl | empty.jsonl contains no problems | gemmdb record --out empty.jsonl
coverage empty.jsonl --json | empty.jsonl contains no problems | gemmdb record --out empty.jsonl
coverage notes.txt | notes.txt:1 | not JSON | name a workload of `gemmdb record`
coverage nonesuch.jsonl | nonesuch.jsonl | `gemmdb record` makes a workload
coverage fields.jsonl | fields.jsonl:1 | delete the line, or record the program again
coverage list.jsonl | list.jsonl:2
coverage . | cannot read .: Is a directory; name a file in it
report . | cannot read .: Is a directory; name a file in it
coverage page.html | page.html is an HTML page; name a workload of `gemmdb record`
report page.html | page.html is an HTML page; name a workload of `gemmdb record`
build --arch cpu --shapes page.html | page.html is an HTML page; name a workload of `gemmdb record`
coverage mine.db | mine.db is a table, not a workload | gemmdb show mine.db
verify | FILE
verify x y | y
verify mine.db --remeasure -3 | --remeasure
verify mine.db --remeasure 1 | Example CPU
verify {URL} | {URL} is a URL | download it
merge a.db | --out
merge mine.db --out other.db | would be replaced
show notes.txt | not JSON
show none.db | No such file | `gemmdb build` a table
report none.db | none.db | No such file | `gemmdb build` a table
tune --folder notes.txt -- true | notes.txt | name another --folder
tune --folder notes.txt/x -- true | notes.txt/x | name another --folder
tune --budget 5 -- true | --budget '5' | 90s, 10m or 1h30m
demo --folder notes.txt | notes.txt
tables push there notes.txt | gemmdb: notes.txt is not
show {H200} --sort colour | known: gain, time, size
export mine.db -o x | Missing option '--to'; known: csv, jsonl, parquet, verdicts, lookup-table; see
import mine.db -o x | Missing option '--from'; known: csv, jsonl, parquet, inductor-log
import page.html --from vllm -o x | page.html is an HTML page | save the raw file
import validators.csv --from tunableop -o x | has no results | PYTORCH_TUNABLEOP_TUNING=1
compare page.html | SyntaxError | name a Python file that sets `model` and `inputs`
export mine.db --to xml -o x | known: csv, jsonl, parquet, verdicts, lookup-table
export none.db --to csv -o x | none.db does not exist
export mine.db --to csv -o no/x | is not a folder
export mine.db --to csv -o . | is a folder
import mine.db --from xml -o x | unknown format 'xml'; known: csv,
import none.csv --from csv -o x | none.csv is not a file
import mine.db --from csv -o x | mine.db:1:
import mine.db --from csv -o no/x | is not a folder
kernels build --arch sm80 | --arch: sm80 has no CUTLASS kernel; sm90 has
tables give | No such command 'give'
tables pull nowhere | nowhere/manifest.json does not exist
tables pull ftp://host/x | no supported URL scheme
tables push there none.db | none.db
tables push there | gemmdb: Missing argument 'TABLE...'; see gemmdb tables push
tables push mine.db https://example.com:8443/tables | https://example.com:8443/tables is a URL | comes first
tables pack nowhere.db --out x.db | nowhere.db does not exist
tables pack mine.db --out no/x.db | no is not a folder
tables pack mine.db | '--out'
tables pack mine.db --out mine.db | would be lost
tables pack mine.db --out other.db | not a packed table
tune | COMMAND
tune --table notes.txt -- PYTHON run.py | notes.txt is not a SQLite file
tune --table . -- PYTHON run.py | is a directory
tune --table packed.db -- PYTHON run.py | packed.db is packed | name another --table
tune --table notes.txt/t.db -- PYTHON run.py | notes.txt/t.db | name another --table
report --out no/page.html -- PYTHON run.py | no is not a folder
report --out . -- PYTHON run.py | is a folder
tune --budget soon -- true | 90s, 10m or 1h30m
tune --effort fastest -- PYTHON run.py | gemmdb: unknown effort 'fastest'; known: quick
freeze --effort fastest -- PYTHON run.py | gemmdb: unknown effort 'fastest'; known: quick
tune --repeats -1 -- true | -1
report mine.db --out mine.db | is the file that the report is about
report model.py | model.py is a program | gemmdb report -- python model.py
"""
NEEDS = {"build": "torch", "compare": "torch", "tune": "torch", "verify": "torch", "tables": "fsspec"}


def cases(table: str) -> list[tuple[str, list[str]]]:
    """The lines of a table: each a call, and the words that are expected."""
    rows = ([part.strip() for part in line.split(" | ")] for line in table.strip("\n").splitlines())
    return [(call, words) for call, *words in rows]


@pytest.fixture
def folder(workload, table, make_table, tmp_path: Path) -> Path:
    """The working directory, with the files that the calls name."""
    make_table("other.db")
    pack(tmp_path / "other.db", tmp_path / "packed.db")
    for name, text in {
        "notes.txt": "no table and no workload", "empty.jsonl": "\n", "list.jsonl": "\n[]\n",
        "one.jsonl": json.dumps({"op": "mm", "m": 4, "n": 48, "k": 64, "dtype": "fp32"}) + "\n",
        "uncovered.jsonl": json.dumps({"uncovered": "baddbmm"}) + "\n",
        "fields.jsonl": json.dumps({"problem": "mm m=1"}) + "\n", "model.py": "import torch\n",
        "run.py": "open('ran', 'w')\n", "page.html": "<!DOCTYPE html>\n<p>1.5em</p>\n",
        "validators.csv": "Validator,PT_VERSION,2.13.0\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    return tmp_path


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", ["lookup", "explain"])
@pytest.mark.parametrize(("call", "words"), cases(PROBLEMS))
def test_what_is_no_problem_is_refused(gemmdb, folder, command, call, words):
    given = call.replace("ONE", "--op mm --m 1 --n 1 --k 1").replace("EMPTY", EMPTY)
    before = files(folder)
    gemmdb(command, *shlex.split(given)).refused(*(word.replace("GRAMMAR", epilogue.GRAMMAR) for word in words))
    assert files(folder) == before


@pytest.mark.parametrize(("call", "words"), cases(CALLS))
def test_a_wrong_call_is_refused(gemmdb, folder, call, words):
    arguments = shlex.split(call.replace("PYTHON", sys.executable))
    package = NEEDS.get(arguments[0])
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    before = files(folder)
    gemmdb(*arguments).refused(*words)
    assert files(folder) == before


@pytest.mark.parametrize(
    ("call", "missing", "words"),
    [
        ("build --arch native", "torch", ["needs torch", "pip install torch", "gemmdb[build]"]),
        ("build --arch sm80 --modelled", "jinja2", ["jinja2, which is not installed: pip install 'gemmdb[build]'"]),
        ("export mine.db --to parquet -o x", "pyarrow", ["pip install 'gemmdb[parquet]'"]),
        ("import mine.db --from parquet -o x", "pyarrow", ["pip install 'gemmdb[parquet]'"]),
        ("report mine.db", "jinja2", ["a report needs jinja2: pip install 'gemmdb[report]'"]),
    ],
)
def test_a_missing_package_is_named_with_the_remedy(gemmdb, table, monkeypatch, call, missing, words):
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, missing, None)
    gemmdb(*call.split()).refused(*words)
    assert not Path("x").exists()


def test_a_build_of_kernels_without_a_compiler_is_refused(gemmdb, monkeypatch):
    monkeypatch.setattr(cutlass, "compiler", lambda: None)
    gemmdb("kernels", "build").refused("nvcc was not found")


def test_bad_environment_is_refused(process):
    process("tables", GEMMDB_ON_MISS="perhaps").refused("GEMMDB_ON_MISS")


def test_every_named_epilogue_has_a_class_that_exists(gemmdb, environment):
    for name, text in epilogue.EXAMPLES.items():
        assert epilogue.parse(text).text == text, name
    for text in ("pointwise", "pointwise:math"):
        assert gemmdb("lookup", *shlex.split(f"--op mm --m 1 --n 64 --k 64 --fusion {text}")).code == 1


def test_the_list_of_classes_is_what_is_accepted():
    groups = [part.rstrip("]").split("|") for part in epilogue.GRAMMAR.split("[")[1:]]
    for options in groups:
        for option in options:
            assert epilogue.parse(f"pointwise{option}").text == f"pointwise{option}"
    longest = "pointwise" + "".join(options[-1] for options in groups)
    assert epilogue.parse(longest).text == longest


def test_a_workload_without_supported_gemms_has_a_coverage(gemmdb, folder):
    assert gemmdb("coverage", "uncovered.jsonl").code == 0


def test_a_url_among_the_tables_stays_whole_and_is_refused_by_name(gemmdb, make_table, flags, monkeypatch):
    monkeypatch.setenv("GEMMDB_TABLES", os.pathsep.join([URL, str(make_table("good.db"))]))
    done = gemmdb("lookup", *flags)
    assert (done.code, done.err.count("\n")) == (0, 1), done
    assert f"{URL} is a URL" in done.err
    assert "download it" in done.err


def test_only_the_command_refuses_a_size_of_zero():
    """A program may have such GEMMs, and a workload may hold them."""
    assert Problem.gemm("mm", m=0, n=64, k=64).empty
