"""What shipped tables and caches depend on is what it was: texts, keys, kernels, candidates and answers.

Each row of `golden/identity.json` is a digest. A refactoring changes none of them. A change is legitimate where it is
the purpose of a commit that says so: a new table (tables, configs, lookups), a kernel whose source changes (sources:
rows measured with the old source no longer hold), a rule or a menu that is corrected (legality, candidates). A changed
text or key of a problem or config is not: shipped tables hold them. Write the file anew with
`PYTHONPATH=tests python -m kit.identity > tests/golden/identity.json` and commit it together with its cause.
"""

import json
from pathlib import Path

import pytest
from kit.identity import ENTRIES

GOLDEN = json.loads((Path(__file__).parent / "golden" / "identity.json").read_text())


def test_every_digest_is_compared():
    assert set(GOLDEN) == set(ENTRIES)


@pytest.mark.parametrize("name", ENTRIES)
def test_it_is_what_it_was(name):
    assert ENTRIES[name]() == GOLDEN[name]
