"""Builds over a cluster in a process of its own: ADDRESS SHAPES OUT DELAY [LATE_S]. Prints what was measured."""

import functools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from recorded_node import NodeBackend

from gemmdb.cli.build import terminable
from gemmdb.generators.build.build import BuildRequest
from gemmdb.generators.cluster.build import build
from gemmdb.generators.cluster.node import Site

address, shapes, out, delay, *late = sys.argv[1:]
with terminable():
    reports = build(
        BuildRequest(arch="native", shapes=shapes, out=Path(out), ray=address),
        site=Site(make=functools.partial(NodeBackend, delay=float(delay))),
        late_s=float(late[0]) if late else None,
    )
for report in reports:
    print(report.device.slug, report.measured, report.before, report.left, report.interrupted, *report.warnings)
