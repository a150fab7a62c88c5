"""What a release is made with: locked versions, a wheel that is the same bytes each time, its bill of materials."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import gemmdb
from gemmdb.errors import InputError
from tools.release import build, description, lock, rehearse, sbom

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = "https://example.com/owner/gemmdb"
WORKFLOW: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())


def requirements() -> list[Requirement]:
    every = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    return [one for text in every if (one := Requirement(text)).name != "gemmdb"]


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_every_requirement_is_locked_to_a_version_that_meets_it(requirement: Requirement) -> None:
    assert requirement.specifier.contains(lock.locked()[lock.normalized(requirement.name)])


def test_the_lock_has_the_torch_of_the_makefile_without_the_label_of_a_build() -> None:
    assert f"torch=={lock.locked()['torch']}" == lock.torch()
    assert not [line for line in lock.CONSTRAINTS.read_text().splitlines() if "+" in line]


def test_a_report_of_pip_becomes_pins() -> None:
    found = [("Torch", "2.13.0+cpu"), ("gemmdb", "0.1.0"), ("Ruamel.Yaml_x", "1.0")]
    report = {"install": [{"metadata": {"name": name, "version": one}} for name, one in found]}
    assert lock.pins(report) == {"ruamel-yaml-x": "1.0", "torch": "2.13.0"}


def makefile(*arguments: str) -> str:
    """What make would run."""
    command = ["make", "--dry-run", "--always-make", "VENV=/nowhere", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_make_installs_what_is_locked() -> None:
    for target, installs in (("test", 2), ("programs", 3)):
        assert len(re.findall(r"pip install .*--constraint constraints\.txt", makefile(target))) == installs


@pytest.mark.parametrize("choice", ["TORCH=torch==2.12.0", "CONSTRAINTS="])
def test_another_torch_is_installed_without_the_lock(choice: str) -> None:
    assert "pip install" in (found := makefile("test", choice))
    assert "--constraint" not in found


def test_actions_of_others_are_named_by_commit() -> None:
    """A tag can be moved to other code."""
    used = [step["uses"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "uses" in step]
    lines = re.findall(r"uses: (\S+)  # v\d+\.\d+\.\d+\n", (ROOT / ".github/workflows/release.yml").read_text())
    assert lines == used
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", one) for one in used)


def test_steps_of_the_workflow_are_commands_that_run_here() -> None:
    runs = [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]
    assert runs == [
        "bash .ci/run all",
        'make release COMMIT="$GITHUB_REF_NAME" REPOSITORY="$GITHUB_SERVER_URL/$GITHUB_REPOSITORY"',
    ]
    made = makefile("release", "COMMIT=v1.2.3")
    assert "-m tools.release build v1.2.3 --check" in made
    assert "-m tools.release rehearse --demo" in made
    assert "-m tools.release sbom dist/*.whl" in made


def test_only_the_job_that_uploads_may_upload_and_it_runs_nothing_else() -> None:
    jobs = WORKFLOW["jobs"]
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert [name for name, job in jobs.items() if "environment" in job] == ["publish"]
    assert sorted(jobs["publish"]["needs"]) == ["build", "test"]
    assert all("uses" in step for step in jobs["publish"]["steps"])
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()


def test_an_unknown_commit_or_a_tag_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"git log .* no-such-commit"):
        build.build("no-such-commit", tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    build._check_tag("v1.2.3", tmp_path)
    build._check_tag("0123abc", tmp_path)
    with pytest.raises(InputError, match=r"v2\.0\.0 has version 1\.2\.3"):
        build._check_tag("v2.0.0", tmp_path)
    with pytest.raises(InputError, match="is not a wheel"):
        sbom.write(tmp_path / "pyproject.toml", tmp_path)


METADATA = """\
Metadata-Version: 2.4
Name: gemmdb
Version: 0.1.0
Summary: kernels
Author: us
License-Expression: Apache-2.0
Requires-Python: >=3.11
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

| a | b |
|---|---|
| 1 | 2 |
"""


def test_metadata_that_the_index_takes_has_no_faults() -> None:
    assert list(rehearse.faults(METADATA.encode())) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("Typing :: Typed", "Typing :: Written", "unknown classifier: Typing :: Written"),
        ("Summary: kernels\n", "", "no summary"),
        ("Apache-2.0", "Apache 2", "'Apache 2' is invalid"),
        ("0.1.0", "one", "'one' is invalid"),
        ("text/markdown", "text/plain", "text/plain, not text/markdown"),
        ("|---|---|\n", "", "tables of the description do not render"),
    ],
)
def test_the_rehearsal_names_what_the_index_would_refuse(old: str, new: str, fault: str) -> None:
    (found,) = rehearse.faults(METADATA.replace(old, new).encode())
    assert fault in found


def test_a_rehearsal_needs_both_distributions(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one source distribution and one wheel"):
        rehearse.found(tmp_path)


def test_the_readme_renders_and_its_links_lead_to_the_tag_of_the_repository() -> None:
    readme = (ROOT / "README.md").read_text()
    text = description.linked(readme, REPOSITORY, "v1.2.3")
    assert f"[Install]({REPOSITORY}/blob/v1.2.3/docs/install.md)" in text
    assert f"]({REPOSITORY}/raw/v1.2.3/docs/images/report.png)" in text
    for one in (text, description.linked(readme, "", "v1.2.3")):
        assert re.findall(r"\]\((?!https:)", one) == []
        assert list(rehearse.faults(METADATA.partition("|")[0].encode() + one.encode())) == []


def test_links_in_code_and_to_the_web_stay() -> None:
    text = "[a](b.md#c) ![d](e.png) [f](https://g.org) [h](#i)\n```\n[j](k)\n```\n"
    assert description.linked(text, "", "v1") == "a  [f](https://g.org) [h](#i)\n```\n[j](k)\n```\n"


@pytest.mark.parametrize("address", ["example.com/gemmdb", "http://example.com/gemmdb", "https://example.com/a b"])
def test_an_address_that_is_not_one_of_the_web_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--repository"):
        description.prepare(tmp_path, address)


def test_every_file_has_the_same_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert {PROJECT["version"], gemmdb.__version__, citation["version"], newest[1]} == {PROJECT["version"]}
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["license"] == PROJECT["license"]


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda path: path.stem
)
def test_a_form_for_issues_has_what_forms_need_and_names_commands_that_exist(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert form["name"]
    assert form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) > 0
    assert all(field["attributes"]["label"] for field in fields)
    commands = set(re.findall(r"^## (?:gemmdb )?(\S+)", (ROOT / "docs/cli.md").read_text(), re.MULTILINE))
    named = set(re.findall(r"`gemmdb (\w+)", path.read_text()))
    assert named <= {one.strip("`") for one in commands}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> build.Distributions:
    return build.build("HEAD", tmp_path_factory.mktemp("release"), REPOSITORY)


@pytest.mark.slow
def test_two_builds_of_a_commit_are_the_same_bytes_and_hold_what_is_committed(
    made: build.Distributions, tmp_path: Path
) -> None:
    one, two = made, build.build("HEAD", tmp_path, REPOSITORY, build.ELSEWHERE)
    assert one.digests == two.digests
    with zipfile.ZipFile(one.wheel) as archive:
        names = set(archive.namelist())
        modes = {info.external_attr >> 16 & 0o777 for info in archive.infolist()}
    tracked = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", "HEAD", "cli", "gemmdb/table", "tables"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert {path if path.startswith("gemmdb/") else f"gemmdb/{path}" for path in tracked} <= names
    assert modes <= {0o644, 0o664}
    with tarfile.open(one.source) as source:
        inside = {member.name.partition("/")[2] for member in source.getmembers()}
    assert {"LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md"} <= inside
    assert not [name for name in inside if name.startswith(("tests", "benchmarks"))]
    for path in one.paths:
        metadata = rehearse.metadata_of(path)
        assert list(rehearse.faults(metadata)) == []
        assert f"Project-URL: Issues, {REPOSITORY}/issues".encode() in metadata


@pytest.mark.slow
def test_the_bill_of_materials_lists_what_an_installation_brings(made: build.Distributions, tmp_path: Path) -> None:
    pytest.importorskip("cyclonedx_py")
    text = sbom.write(made.wheel, tmp_path / "sbom").read_text()
    document = json.loads(text)
    assert document["bomFormat"] == "CycloneDX"
    assert document["metadata"]["component"]["name"] == "gemmdb"
    versions = {lock.normalized(one["name"]): one["version"] for one in document["components"]}
    assert {"typer", "sqlite-utils"} <= set(versions)
    assert versions.items() <= lock.locked().items()
    assert not {"serialNumber"} & set(document)  # Nor anything else that is not the same each time.
    assert "timestamp" not in document["metadata"]
    assert str(tmp_path) not in text
    assert str(ROOT) not in text


@pytest.mark.slow
def test_an_installation_answers_and_does_not_see_the_checkout(
    made: build.Distributions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # With an egg-info there, pip takes gemmdb for installed.
    (tmp_path / "here").mkdir()
    for path in made.paths:
        python = rehearse.environment(tmp_path / path.suffix, path)
        assert rehearse.answers(python, tmp_path / "here") == f"gemmdb {PROJECT['version']}: triton:tile"
