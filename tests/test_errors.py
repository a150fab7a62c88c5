"""Messages for unknown names."""

from __future__ import annotations

from typing import Any

import pytest

import gemmdb
import gemmdb.inductor
from gemmdb.errors import InputError, choices, suggestion


@pytest.mark.parametrize(
    ("given", "said"), [("bf61", "; did you mean 'bf16'?"), ("BF16", "; did you mean 'bf16'?"), ("xyzzy", ""), (3, "")]
)
def test_the_nearest_known_name_is_suggested_if_one_is_near(given: object, said: str) -> None:
    assert suggestion(given, ["fp32", "bf16"]) == said
    assert suggestion(f"GEMMDB_{given}", ["GEMMDB_fp32", "GEMMDB_bf16"]) == said.replace("bf16", "GEMMDB_bf16")
    assert choices(given, ("fp32", "bf16")) == f"known: fp32, bf16{said}"


@pytest.mark.parametrize(("call", "given", "meant"), [
    (gemmdb.lookup, "devise", "device"), (gemmdb.inductor.enable, "polcy", "policy"),
    (gemmdb.inductor.record, "pth", "path"), (gemmdb.inductor.force, "choser", "chooser"),
    (gemmdb.Policy, "near_los", "near_loss"),
])  # fmt: skip
def test_a_wrong_argument_names_the_nearest_right_one(call: Any, given: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"keyword argument '{given}'; did you mean '{meant}'") as raised:
        call(**{given: None})
    assert isinstance(raised.value, TypeError)  # As Python itself raises.


@pytest.mark.parametrize("name", ["compare", "report"])
def test_functions_that_need_torch_do_so_too(name: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(InputError, match=f"{name} got an unexpected keyword argument 'xyzzy'; known: "):
        getattr(gemmdb.inductor, name)(xyzzy=1)
