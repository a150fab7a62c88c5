"""Filters the candidates of a build by regular expressions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from gemmdb.errors import InputError
from gemmdb.generators.backend import Candidate, Job
from gemmdb.kernels.config import ATEN


def select(jobs: Sequence[Job], allow: str, deny: str) -> list[Job]:
    """The jobs, reduced to the candidates whose text matches `allow` and does not match `deny`. An empty expression has
    no effect. A Policy with the same expressions serves the same configs. ATen, the reference of all, always stays.

    Raises InputError for an invalid regular expression.
    """
    allowed, denied = compiled(allow, deny)

    def wanted(candidate: Candidate) -> bool:
        text = candidate.config.text
        if candidate.config == ATEN:
            return True
        return not (denied and denied.search(text)) and not (allowed and not allowed.search(text))

    return [replace(job, candidates=tuple(filter(wanted, job.candidates))) for job in jobs]


def compiled(allow: str, deny: str) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
    """Both expressions, None for an empty one. Raises InputError for an invalid one."""
    return _compiled("--allow", allow), _compiled("--deny", deny)


def _compiled(option: str, pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern) if pattern else None
    except re.error as error:
        raise InputError(f"{option} {pattern!r}: not a regular expression ({error})") from error
