"""The schemas of the commands' JSON. The fixtures `gemmdb` and `process` check every document that a test prints."""

import json
import re

import pytest
from jsonschema import Draft202012Validator, ValidationError
from kit.schemas import FOLDER, validator

from gemmdb.cli.output import JSON_VERSION

NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
PRINTED = FOLDER.parents[1] / "cli"


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_is_one_and_says_what_it_is_of(name):
    found = json.loads((FOLDER / f"{name}.json").read_text())
    Draft202012Validator.check_schema(found)
    assert found["title"] == name
    assert found["description"]
    assert found["properties"]["schema"] == {"const": name}
    assert found["properties"]["version"] == {"const": JSON_VERSION}


def test_every_document_that_a_command_prints_has_a_schema():
    texts = "".join(path.read_text() for path in PRINTED.glob("*.py"))
    assert sorted(set(re.findall(r'say_json\("(\w+)"', texts))) == NAMES


def test_a_document_without_a_field_is_refused():
    document = {"schema": "doctor", "version": 1, "checks": [{"name": "torch", "state": "ok", "detail": ""}]}
    with pytest.raises(ValidationError, match="remedy"):
        validator("doctor").validate(document)
