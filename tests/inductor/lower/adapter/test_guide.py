"""docs/contributing/torch.md says what is so: the modules of the adapter, the register, the names of the example."""

import re
from pathlib import Path

import pytest

from gemmdb.inductor.lower import adapter
from gemmdb.inductor.lower.adapter import SUPPORTED_TORCH, patches

ROOT = Path(__file__).parents[4]
GUIDE = (ROOT / "docs" / "contributing" / "torch.md").read_text()
FOLDER = Path(adapter.__file__).parent


def table(heading):
    """The cells of the first table under a heading, without its head."""
    section = GUIDE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


def test_every_module_of_the_adapter_is_in_the_guide():
    named = {cells[0].strip("`") for cells in table("What each module touches")}
    assert named == {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}


def test_the_table_of_patches_is_the_register():
    short = {patch: patch.target.removeprefix("torch._inductor.") for patch in patches.PATCHES}
    wanted = [[f"`{short[patch]}`", patch.reason] for patch in patches.PATCHES]
    assert table("The register") == wanted


@pytest.mark.parametrize("cells", table("A worked example: 2.11 and 2.13"), ids=lambda cells: cells[0][:40])
def test_what_the_example_names_is_there(cells):
    """A name in backquotes is in the module that the same cell names, in the register, or in torch's own words."""
    names = re.findall(r"`([\w./]+)`", cells[1])
    places = [ROOT / name if "/" in name else FOLDER / f"{name}.py" for name in names]
    files = [place for place in places if place.is_file()] or [FOLDER / "patches.py"]
    source = "".join(file.read_text() for file in files)
    assert all(name in source for name, place in zip(names, places, strict=True) if not place.is_file())


def test_the_documents_name_the_supported_versions_of_torch():
    supported = f"torch {SUPPORTED_TORCH[0]} to {SUPPORTED_TORCH[-1]}"
    for page in ("README.md", "docs/install.md", "docs/contributing/integration.md", "docs/contributing/origins.md"):
        assert set(re.findall(r"torch 2\.\d+ to 2\.\d+", (ROOT / page).read_text())) == {supported}, page


def test_the_digests_are_where_the_guide_says():
    assert re.search(r"^EQUIVALENT = ", (ROOT / "gemmdb" / "kernels" / "inductor.py").read_text(), re.M)
