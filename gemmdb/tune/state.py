"""What a `gemmdb tune` keeps in its folder, so that the next one with the same command continues."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError
from gemmdb.files import replacing

VERSION = 1
WORKLOAD = "workload.jsonl"
QUEUE = "build.jsonl"
STATE = "tune.json"
SCRIPTS = (".py", ".sh")
"""What a command's files of a program end with. Other files of it may be data that the program writes."""


@dataclass
class State:
    """Progress of one command. `recorded`: whether its run ended; `stopped`: whether Ctrl-C or SIGTERM ended it;
    `run_s`: seconds that it takes on a quiet machine; `scripts`: the state of the command's scripts at its start;
    `pace`: how many times as long as expected the last build took; `tables`: the identity of the tables at the last
    comparison; `gained`: its result."""

    folder: Path
    command: tuple[str, ...]
    recorded: bool = False
    stopped: bool = False
    pace: float = 1.0
    run_s: float = 0.0
    scripts: str = ""
    tables: str = ""
    gained: dict[str, Any] = field(default_factory=dict)

    @property
    def workload(self) -> Path:
        """Path of the recorded workload."""
        return self.folder / WORKLOAD

    @property
    def queue(self) -> Path:
        """Path of the workload to build, in order."""
        return self.folder / QUEUE

    def save(self) -> None:
        """Write the state. Raises InputError."""
        document = {"version": VERSION, **asdict(self)}
        del document["folder"]
        with replacing(self.folder / STATE) as part:
            part.write_text(json.dumps(document, indent=2) + "\n")

    def discard(self) -> None:
        """Delete the state from the folder."""
        for name in (WORKLOAD, QUEUE, STATE):
            (self.folder / name).unlink(missing_ok=True)


class TakenError(InputError):
    """The folder belongs to another command."""

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        super().__init__(f"{folder} belongs to `{shlex.join(command)[:200]}`: choose another --folder or use --fresh")
        self.folder = folder

    def other(self, command: Sequence[str]) -> Path:
        """Return the folder beside this one that a command can use: its own, or one that does not exist."""
        beside = (self.folder.with_name(f"{self.folder.name}-{number}") for number in count(2))
        return next(one for one in beside if not one.exists() or _command_of(one) == list(command))


def open_folder(folder: Path, command: Sequence[str], fresh: bool) -> State:
    """Return the state of `command` in `folder`, which is created if missing. `fresh`: discard existing state. Raises
    InputError if the folder belongs to another command or its state cannot be read."""
    new, path = State(folder, tuple(command)), folder / STATE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists() and new.workload.exists():
            raise InputError(f"{new.workload} was not created by `gemmdb tune`: choose another --folder")
        if fresh:
            new.discard()
        if not path.exists():
            new.save()
            return new
        item = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(item, dict) and item.get("version", VERSION) != VERSION:
            raise InputError(f"{path} is from another version of gemmdb; --fresh starts over")
        known = State(
            folder, tuple(map(str, item["command"])), item["recorded"] is True, item["stopped"] is True,
            _figure(item, "pace", 1.0), _figure(item, "run_s", 0.0), str(item.get("scripts", "")), str(item["tables"]),
            dict(item["gained"]),
        )  # fmt: skip
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"cannot use the folder {folder}: {error.strerror}; name another --folder") from error
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged; --fresh starts over") from error
    if known.command != new.command:
        raise TakenError(folder, known.command)
    return known


def scripts(command: Sequence[str]) -> str:
    """Return the state of the scripts that a command names: another text once one of them has changed."""
    found = (Path(word) for word in command if word.endswith(SCRIPTS))
    stats = ((path.name, path.stat()) for path in found if path.is_file())
    return " ".join(f"{name}:{stat.st_size}:{stat.st_mtime_ns}" for name, stat in stats)


def _command_of(folder: Path) -> object:
    try:
        return json.loads((folder / STATE).read_text(encoding="utf-8"))["command"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None


def _figure(item: dict[str, Any], name: str, default: float) -> float:
    value = float(item.get(name, default))
    if not 0 <= value < 1e9:
        raise ValueError(name)
    return value
