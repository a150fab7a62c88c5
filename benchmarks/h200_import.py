"""Put the rows that `h200_build.py` wrote into a table.

python benchmarks/h200_import.py benchmarks/results/h200/*/rows.jsonl.gz --out sm90-nvidia-h200.db
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gemmdb.config import Config
from gemmdb.device import Device
from gemmdb.generators.store import Store
from gemmdb.measurement import Measurement, Protocol, Status, Times
from gemmdb.problem import Problem
from gemmdb.toolchain import Toolchain


def measurement(line: dict[str, Any]) -> Measurement:
    """The Measurement of a line. Raises InputError for anything that `h200_build.py` does not write."""
    times = line["times"]
    return Measurement(
        Problem.parse(line["problem"]),
        Config.parse(line["config"]),
        Device.parse(line["device"]),
        Protocol.parse(line["protocol"]),
        Toolchain.parse(line["toolchain"]),
        line["run"],
        Status(line["status"]),
        Times(*times[:3], int(times[3]), times[4]) if times else None,
        line["error"],
        line["compile_s"],
        line["detail"],
    )


def measurements(path: Path) -> Iterator[Measurement]:
    """The rows of a file, plain or gzipped."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from (measurement(json.loads(line)) for line in file)


def main() -> None:
    """Import and recompute the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", required=True, type=Path)
    options = parser.parse_args()
    with Store.open(options.out) as store:
        for path in options.files:
            print(path, store.add(measurements(path)), "rows")
        print(store.refresh(), "verdicts")


if __name__ == "__main__":
    main()
