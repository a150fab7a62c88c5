"""Merge of tables: the union of their measurements, with verdicts derived again."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from gemmdb.errors import InputError, TableError
from gemmdb.table import file_locks
from gemmdb.table.admission import check_inputs
from gemmdb.table.reader import Table
from gemmdb.table.writer import Store

_CHUNK = 5000


def merge(inputs: Sequence[Path], out: Path) -> int:
    """Write the union of the tables `inputs` to `out`, which may be one of them. Returns the number of measurements.

    The order of the inputs, and repeats, make no difference. `out` is replaced atomically or stays unchanged, and
    nobody can add rows to it meanwhile. Raises TableError for an input that is not a table or that GEMMDB_TRUST
    rejects, or if `out` exists and is not a table.
    """
    if not inputs:
        raise InputError("nothing to merge: name at least one table")
    check_inputs(out, inputs)
    return unite(inputs, out)


def unite(inputs: Sequence[Path], out: Path) -> int:
    """Merge already trusted files; otherwise as `merge`."""
    count = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(held(out))
        tables = [stack.enter_context(contextlib.closing(Table.open(path))) for path in inputs]
        part = stack.enter_context(replacement(out))
        try:
            with Store.open(part) as store:
                store.add_runs(run for table in tables for run in table.provenance())
                rows = (row for table in tables for row in table.measurements())
                while chunk := list(islice(rows, _CHUNK)):
                    count += store.add(chunk)
                store.refresh(above=max(table.generation for table in tables))
        except TableError as error:
            raise TableError(str(error).replace(str(part), str(out))) from error  # Hides the temporary file.
    return count


@contextlib.contextmanager
def replacement(out: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `out` when the block ends, or is removed if it fails. Raises InputError if
    the folder does not exist, TableError if the file cannot be written."""
    folder = Path(file_locks.real(out)).parent  # A link may lead to another file system.
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; make it, or name another --out")
    part = folder / f".{out.name}.{secrets.token_hex(4)}.part"
    try:
        yield part
        file_locks.replace_file(out, part)
    except OSError as error:
        raise TableError(f"{out} cannot be written ({error.strerror}); check its folder") from error
    finally:
        for left in (part, part.with_name(f"{part.name}-journal")):
            with contextlib.suppress(OSError):
                left.unlink()


@contextlib.contextmanager
def held(out: Path) -> Iterator[None]:
    """Lock other writers out of `out` while it is being replaced; they then continue with the new file. This also rolls
    back an unfinished write of a killed process. Raises TableError if `out` exists and is not a table."""
    if not out.exists():
        yield
        return
    with Store.open(out) as store, store.transaction():
        yield
