"""The folder of a `gemmdb tune`: what is done, so that the next run continues from there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gemmdb.errors import InputError

VERSION = 1
WORKLOAD = "workload.jsonl"
QUEUE = "build.jsonl"
STATE = "tune.json"


@dataclass
class State:
    """What is done of one command. `recorded`: whether its run ended; `stopped`: whether Ctrl-C or SIGTERM ended it;
    `pace_s`: measured seconds per problem of the last build; `tables`: the identity of the tables at the last
    comparison; `gained`: its result."""

    folder: Path
    command: tuple[str, ...]
    recorded: bool = False
    stopped: bool = False
    pace_s: float | None = None
    tables: str = ""
    gained: dict[str, Any] = field(default_factory=dict)

    @property
    def workload(self) -> Path:
        """What was recorded."""
        return self.folder / WORKLOAD

    @property
    def queue(self) -> Path:
        """What is built, in order: a workload too."""
        return self.folder / QUEUE

    def save(self) -> None:
        """Write the state. Raises OSError."""
        document = {"version": VERSION, **asdict(self)}
        del document["folder"]
        partial = self.folder / f"{STATE}.partial"
        partial.write_text(json.dumps(document, indent=2) + "\n")
        partial.replace(self.folder / STATE)


def open_folder(folder: Path, command: Sequence[str], fresh: bool) -> State:
    """The state of `command` in `folder`, which is made if it is missing. `fresh`: forget what is there. Raises
    InputError for the folder of another command, and for a state that cannot be read."""
    new, path = State(folder, tuple(command)), folder / STATE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists() and new.workload.exists():
            raise InputError(f"{new.workload} is not of `gemmdb tune`: name another --folder")
        if fresh:
            for name in (WORKLOAD, QUEUE, STATE):
                (folder / name).unlink(missing_ok=True)
        if not path.exists():
            new.save()
            return new
        item = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(item, dict) and item.get("version", VERSION) != VERSION:
            raise InputError(f"{path} is of another version of gemmdb; --fresh starts anew")
        known = State(
            folder, tuple(map(str, item["command"])), item["recorded"] is True, item["stopped"] is True,
            None if item["pace_s"] is None else float(item["pace_s"]), str(item["tables"]), dict(item["gained"]),
        )  # fmt: skip
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"cannot use the folder {folder}: {error.strerror}") from error
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged; --fresh starts anew") from error
    if known.command != new.command:
        raise InputError(
            f"{folder} belongs to `{' '.join(known.command)[:200]}`: name another --folder, or start anew with --fresh"
        )
    return known
