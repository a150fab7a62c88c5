"""The exceptions that gemmdb raises."""


class GemmdbError(Exception):
    """Base class of gemmdb's errors. The message is one line that names the input and the fix."""


class InputError(GemmdbError, ValueError):
    """Invalid input: an unknown op, mismatched sizes, an unreadable file. The CLI exits with 2."""


class TableError(GemmdbError):
    """An unusable table: not SQLite, corrupted, a newer schema, or invalid values. The CLI exits with 2."""


class MissError(GemmdbError):
    """Strict mode (`on_miss="error"`): no table covers a problem, so the compile fails with an error that names it."""
