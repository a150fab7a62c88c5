"""Messages for unknown names."""

from __future__ import annotations

import pytest

from gemmdb.errors import choices, suggestion


@pytest.mark.parametrize(
    ("given", "said"), [("bf61", "; did you mean 'bf16'?"), ("BF16", "; did you mean 'bf16'?"), ("xyzzy", ""), (3, "")]
)
def test_the_nearest_known_name_is_suggested_if_one_is_near(given: object, said: str) -> None:
    assert suggestion(given, ["fp32", "bf16"]) == said
    assert suggestion(f"GEMMDB_{given}", ["GEMMDB_fp32", "GEMMDB_bf16"]) == said.replace("bf16", "GEMMDB_bf16")
    assert choices(given, ("fp32", "bf16")) == f"known: fp32, bf16{said}"
