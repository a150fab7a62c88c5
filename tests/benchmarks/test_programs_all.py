"""Tiny versions of the programs of transformers, torchao, timm and diffusers, with gemmdb, on a CPU.

`make programs` installs the packages. Without them these tests are skipped.
"""

from __future__ import annotations

import pytest

from benchmarks.programs.packages import missing
from benchmarks.programs.suite import suite

NAMES = [name for name, program in suite().items() if program.needs]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_tiny_version_is_right_with_gemmdb(name: str) -> None:
    pytest.importorskip("torch")
    from kit.one_unit import compiled_at_once

    from benchmarks.programs.check import checked

    program = suite()[name]
    if why := missing(program.needs) or program.gpu_only:
        pytest.skip(why)
    with compiled_at_once():
        found = checked(program, "cpu")
    assert "gemmdb" in found, found
