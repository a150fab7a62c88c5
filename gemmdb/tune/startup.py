"""Runs at the start of every Python process: recording and timing put this file first on PYTHONPATH as
`sitecustomize.py`.

It waits until the program imports torch and then starts the mode named in the adjacent file `target`. A program that
never imports torch pays one name comparison per import. It writes a file per process to its own folder, so that a
failure can be explained. It runs in any Python that COMMAND starts, so it uses only the standard library, and a failure
breaks nothing.
"""

import importlib
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would slow every start


def leave(name: str, text: str = "") -> None:
    """Write the file `name`-<process ID>: `python` started, `torch` imported, or `failed` with the reason."""
    try:
        with open(os.path.join(HERE, f"{name}-{os.getpid()}"), "w") as file:  # noqa: PTH118
            file.write(text)
    except OSError:
        pass  # The recording has ended before this process.


def start() -> None:
    """Start the mode in the adjacent file `target`: `record` and the workload path, `without` or `with` and the folder
    for graph times, or `settle`."""
    leave("torch")
    try:
        with open(os.path.join(HERE, "target")) as file:  # noqa: PTH118
            what, path = file.read().split("\n", 1)
        if what == "record":
            from gemmdb.inductor import record

            record(path)
        elif what == "settle":
            from gemmdb.tune import settling

            settling.start()
        else:
            from gemmdb.tune import stopwatch

            stopwatch.start(path, what == "with")
    except Exception as error:
        leave("failed", f"{sys.executable}: {type(error).__name__}: {error}")


class WaitForTorch:
    """An import finder that never finds a module itself."""

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]
        """Start just before `torch` is first loaded, then let the other finders find it."""
        if name != "torch":
            return None
        sys.meta_path.remove(WaitForTorch)
        start()
        return importlib.util.find_spec(name)


def chain() -> None:
    """Run the sitecustomize that this one hides, as if this one were not there."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != HERE]  # noqa: PTH100
    own = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        # There is none. The import system expects to find the module that it has just loaded.
        sys.modules["sitecustomize"] = own


if __name__ == "sitecustomize":
    leave("python")
    sys.meta_path.insert(0, WaitForTorch)
    chain()
