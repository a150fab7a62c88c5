"""Builds over a cluster in a process of its own: ADDRESS SHAPES OUT DELAY [FOLDER FREE]. Prints what was measured.
FOLDER and FREE are those of a `Gate`."""

import functools
import sys
from pathlib import Path

from recorded_node import Gate, NodeBackend

from gemmdb.cli.build import terminable
from gemmdb.generators.build.build import BuildRequest
from gemmdb.generators.cluster.build import build
from gemmdb.generators.cluster.node import Site

address, shapes, out, delay, *gate = sys.argv[1:]
make = functools.partial(NodeBackend, delay=float(delay), gate=Gate(gate[0], int(gate[1])) if gate else None)
with terminable():
    reports = build(
        BuildRequest(arch="native", shapes=shapes, out=Path(out), ray=address),
        site=Site(make=make),
    )
for report in reports:
    print(report.device.slug, report.measured, report.before, report.left, report.interrupted, *report.warnings)
