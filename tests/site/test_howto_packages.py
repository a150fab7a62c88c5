"""The pages of docs/how-to whose programs need other packages. `make programs` installs them, and runs these tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.pages import program, shell


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("page", "package", "expected"),
    [
        ("how-to/torchao.md", "torchao", "mixed_mm aten"),
        ("how-to/generate.md", "transformers", "torch.Size([1, 12])"),
    ],
)
def test_the_program_of_the_page_runs(
    page: str, package: str, expected: str, tmp_path: Path, vector_units: None
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip(package)
    assert expected in shell(f"python -W ignore {program(page, tmp_path)}", tmp_path)
