"""All ranks of a job must choose the same kernels: ranks with other tables or another policy are reported."""

from __future__ import annotations

import hashlib
import logging

from gemmdb.errors import TableError
from gemmdb.inductor.entry.session import Session
from gemmdb.inductor.observe.journal import JOURNAL

log = logging.getLogger("gemmdb")
_compared: set[str] = set()


def compare(session: Session) -> None:
    """Compare a session's identity with that of the first rank that compiled, once per identity and process.

    A difference is a warning and an entry in `stats()["errors"]`; under `on_miss="error"` it raises TableError.
    """
    identity = session.identity
    if identity is None or identity in _compared:
        return
    from gemmdb.inductor.lower.adapter import ranks

    own = hashlib.sha256(identity.encode()).hexdigest()[:16]
    # Policies may differ on purpose, so each policy has an entry of its own.
    found = ranks.first(f"gemmdb/{hashlib.sha256(session.policy.text.encode()).hexdigest()[:16]}", own)
    if found is None:
        return
    _compared.add(identity)
    rank, first = found
    if first == own:
        return
    text = (
        f"rank {rank} answers from other tables than the rank that compiled first, so ranks may run different kernels: "
        "give all of them the same GEMMDB_TABLES and GEMMDB_USER_TABLE"
    )
    if session.policy.on_miss == "error":
        raise TableError(text)
    JOURNAL.error(text)
    log.warning("%s", text)
