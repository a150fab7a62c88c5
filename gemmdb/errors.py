"""Every exception that gemmdb raises on purpose."""


class GemmdbError(Exception):
    """Base class of gemmdb's errors. The text is one line that names the input and the remedy."""


class InputError(GemmdbError, ValueError):
    """The caller's input is not usable: an unknown op, mismatched sizes, an unreadable file. The CLI exits with 2."""


class TableError(GemmdbError):
    """A table cannot be trusted: not SQLite, corrupted, a newer schema, or invalid values. The CLI exits with 2."""


class MissError(GemmdbError):
    """Strict mode (`on_miss="error"`): no table answers a problem, so the compile fails with its name."""
