"""The JSON that commands print, against the schemas in docs/schemas."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

# It makes 39 parsers, for more than a second, for formats that no schema here has.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
from jsonschema import Draft202012Validator

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"


class Printed(Protocol):
    """What a command printed."""

    @property
    def out(self) -> str:
        """Its stdout."""


Done = TypeVar("Done", bound=Printed)


def checked(done: Done, arguments: Sequence[str]) -> Done:
    """The same, after its JSON was found to be what its schema says."""
    if "--json" in arguments and done.out.strip():
        found = json.loads(done.out)
        validator(found["schema"]).validate(found)
    return done


@functools.cache
def validator(name: str) -> Any:
    """What checks a document against the schema of that name."""
    return Draft202012Validator(json.loads((FOLDER / f"{name}.json").read_text()))
