"""Every exception that gemmdb raises on purpose."""


class GemmdbError(Exception):
    """Base of all of gemmdb's own errors; its text is one line that names the input and the remedy."""


class InputError(GemmdbError, ValueError):
    """What the caller gave is not usable: an unknown op, mismatched sizes, an unreadable file. The CLI exits with 2."""


class TableError(GemmdbError):
    """A table cannot be trusted: not SQLite, corrupted, a newer schema, a value outside it. The CLI exits with 2."""


class MissError(GemmdbError):
    """Strict mode (`on_miss="error"`): a problem is in no table, so the compile fails and names it."""
