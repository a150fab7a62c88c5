"""The pages of docs/how-to: their programs run on this CPU. Every command of gemmdb that a document shows is one."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest
import typer
from kit import lab
from kit.pages import DOCS, blocks, commands, program, shell, without_tables

from gemmdb.cli.app import app
from gemmdb.table.writer import Store
from gemmdb.workload import entries
from gemmdb.workload.entries import Entry

PAGES = sorted(f"how-to/{path.name}" for path in (DOCS / "how-to").glob("*.md"))
EXPECTED = {
    "how-to/engines.md": "'_C::cutlass_scaled_mm': 'it is not loaded'",
    "how-to/frozen.md": "None",
    "how-to/gpt-fast.md": "aten",
    "how-to/gptq-awq.md": "group=128 zeros=int4 packing=gptq",
    "how-to/inductor-directly.md": "{'aten': 1}",
    "how-to/training.md": "5 distinct GEMMs",
}
"""What a page's program prints on a CPU without tables of its own."""
RUN_HERE = ("how-to/aotinductor.md", "how-to/ci.md", "how-to/air-gapped.md", "how-to/cluster.md")
"""The pages whose commands are run below."""
OF_OTHERS = ("how-to/torchao.md", "how-to/generate.md")
"""The pages whose programs need other packages: test_howto_packages.py runs them."""
ROOT = DOCS.parent
DOCUMENTS = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", EXPECTED)
def test_the_program_of_the_page_runs(page: str, tmp_path: Path, vector_units: None) -> None:
    pytest.importorskip("torch")
    from kit.inductor import script

    done = script(tmp_path / program(page, tmp_path), tmp_path, without_tables(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    assert EXPECTED[page] in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_the_package_runs_in_c(tmp_path: Path, vector_units: None) -> None:
    """Its two programs print the same sum."""
    pytest.importorskip("torch")
    lines = commands("how-to/aotinductor.md", tmp_path).splitlines()
    sums = [float(line) for line in lines if re.fullmatch(r"\d+\.\d\d", line)]
    assert len(sums) == 2
    assert sums[0] == pytest.approx(sums[1], rel=1e-5)


@pytest.fixture
def at_home(tmp_path: Path) -> Path:
    """A folder with a table, `mine.db` and `tuned/mine.db`, and a workload of two GEMMs, the first of which the
    table answers."""
    known, unknown = lab.problem(k=256), lab.problem(k=2048)
    with Store.open(tmp_path / "mine.db") as store:
        store.add(lab.rows(known, {lab.cpp(): 0.5}))
        store.refresh()
    (tmp_path / "tuned").mkdir()
    shutil.copy(tmp_path / "mine.db", tmp_path / "tuned")
    write(tmp_path / "workload.jsonl", [Entry(problem, 1, 10, lab.CPU.text) for problem in (known, unknown)])
    return tmp_path


def write(path: Path, entries: list[Entry]) -> None:
    """A workload of these entries."""
    path.write_text("".join(f"{entry.line}\n" for entry in entries))


def test_the_gate_fails_where_gemms_miss_and_passes_where_none_does(at_home: Path) -> None:
    (gate,) = [block for block in blocks("how-to/ci.md") if block.name == "gate.py"]
    check, whole = [block.code for block in blocks("how-to/ci.md") if block.language == "sh"]
    (at_home / gate.name).write_text(gate.code)
    said = shell(check, at_home, code=1)
    assert "missed: mm m=16 n=256 k=2048" in said
    (first, _) = entries.read(at_home / "workload.jsonl").entries
    write(at_home / "workload.jsonl", [first])
    assert "100.0% of the time is answered" in shell(check, at_home)
    assert shell(whole, at_home)


def test_tables_are_carried_over(at_home: Path) -> None:
    pytest.importorskip("fsspec")
    said = commands("how-to/air-gapped.md", at_home)
    assert "opt/tables/mine.db" in said
    assert (at_home / "opt/tables/mine.db").read_bytes() == (at_home / "carried/tables/mine.db").read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cluster_of_this_host_builds(at_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_worker_niceness", "0")  # The other workers of the tests would keep the processors.
    for package in ("torch", "ray"):
        pytest.importorskip(package)
    (at_home / "mine.db").unlink()
    (first, _) = entries.read(at_home / "workload.jsonl").entries
    write(at_home / "workload.jsonl", [first])
    said = commands("how-to/cluster.md", at_home)
    assert re.search(r"measurements +1 of 1 measured now", said)


def test_what_is_carried_in_is_what_is_needed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {*project["dependencies"], *project["optional-dependencies"]["build"]}
    (line,) = re.findall(r"^pip download -d wheels (.*)$", (DOCS / "how-to/air-gapped.md").read_text(), re.MULTILINE)
    assert set(shlex.split(line)) == needed


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_a_document_shows_is_one(document: Path) -> None:
    """In its blocks of code, a command by itself on its line, with options that exist."""
    text = "\n".join(re.findall(r"^```(?:sh)?\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL))
    for line in re.findall(r"^(?:[A-Z_]+=\S+ )*gemmdb (\w.*)$", text, re.MULTILINE):
        name, *arguments = shlex.split(line.partition(" > ")[0], comments=True)
        typer.main.get_command(app).commands[name].make_context(name, arguments)  # type: ignore[attr-defined]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_of_python_parses_and_takes_from_gemmdb_what_is_there(document: Path) -> None:
    for code in re.findall(r"^```python.*\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gemmdb"):
                module = importlib.import_module(str(node.module))
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
            if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("gemmdb."):
                assert resolves(ast.unparse(node)), ast.unparse(node)


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    owner, _, last = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return bool(owner) and resolves(owner) and hasattr(importlib.import_module(owner), last)
    return True


def test_every_page_names_its_programs() -> None:
    assert len(PAGES) == 19
    for page in PAGES:
        assert all(block.name for block in blocks(page) if block.language in ("python", "cpp", "cmake", "toml"))
        assert page in {*EXPECTED, *RUN_HERE, *OF_OTHERS} or not any(block.language == "sh" for block in blocks(page))


def test_the_plugin_of_vllm_names_a_function_that_needs_no_arguments() -> None:
    (project,) = [block for block in blocks("how-to/inductor-directly.md") if block.language == "toml"]
    ((_, target),) = tomllib.loads(project.code)["project"]["entry-points"]["vllm.general_plugins"].items()
    module, _, name = target.partition(":")
    inspect.signature(getattr(importlib.import_module(module), name)).bind()
